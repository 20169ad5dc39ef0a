// SPDX-License-Identifier: Apache-2.0

package chattemplate

import (
	"strings"
	"time"
)

// clock tells a rendering's time, the same one throughout.
type clock struct {
	now  func() time.Time
	time time.Time
}

// strftime is datetime.now().strftime(format), the engine's local time taken to
// be this process's. Directives that depend on a locale follow C's.
func (c *clock) strftime(format string) string {
	if c.time.IsZero() {
		if c.now == nil {
			c.now = time.Now
		}
		c.time = c.now()
	}
	var b strings.Builder
	for i := 0; i < len(format); i++ {
		if format[i] != '%' || i+1 == len(format) {
			b.WriteByte(format[i])
			continue
		}
		i++
		plain := format[i] == '-' && i+1 < len(format) // glibc: without padding
		if plain {
			i++
		}
		s := c.time.Format(strftimeLayouts[format[i]])
		switch {
		case format[i] == '%':
			s = "%"
		case strftimeLayouts[format[i]] == "":
			s = "%" + string(format[i])
		case plain:
			if s = strings.TrimLeft(s, "0"); s == "" {
				s = "0"
			}
		}
		b.WriteString(s)
	}
	return b.String()
}

var strftimeLayouts = map[byte]string{
	'Y': "2006", 'y': "06", 'm': "01", 'd': "02", 'e': "_2", 'j': "002",
	'B': "January", 'b': "Jan", 'h': "Jan", 'A': "Monday", 'a': "Mon",
	'H': "15", 'I': "03", 'M': "04", 'S': "05", 'p': "PM", 'f': "000000",
	'F': "2006-01-02", 'D': "01/02/06", 'T': "15:04:05", 'R': "15:04",
	'c': "Mon Jan _2 15:04:05 2006", 'x': "01/02/06", 'X': "15:04:05",
	'%': "%", 'n': "\n", 't': "\t",
}
