// SPDX-License-Identifier: Apache-2.0

package command

import (
	"context"
	"errors"
	"fmt"
	"net/url"
	"os"
	"slices"
	"strings"
	"time"

	tea "charm.land/bubbletea/v2"
	"github.com/spf13/cobra"
	"golang.org/x/term"

	"github.com/kvaware/caddy-kvaware/kvaware"
)

func topCommand() *cobra.Command {
	cmd := &cobra.Command{
		Use:   "top [--pool <name>] [--interval <duration>]",
		Short: "Shows what each upstream carries, holds and does, and keeps on",
		Long: `Shows what each upstream of a running Caddy carries now, what its cache saves, how
fast it answers, and where the last requests went, and asks anew each second. Bars
are of prefill that waits and of running decodes, against the fullest upstream's.

Keys: left and right choose the column to sort by, r turns the order around, up,
down, page up and page down scroll, space stops and goes on, q ends it. Colors are
left out if the variable NO_COLOR is set.

Where input or output is no terminal it prints once, as status does, with the same
exit codes.`,
		Args: cobra.NoArgs,
		RunE: runTop,
	}
	cmd.Flags().DurationP("interval", "i", time.Second, "How often to ask, 100ms at least")
	addFleetFlags(cmd)
	return cmd
}

func runTop(cmd *cobra.Command, _ []string) error {
	interval, err := cmd.Flags().GetDuration("interval")
	if err != nil || interval < 100*time.Millisecond {
		return fmt.Errorf("interval %v: expecting 100ms or more", interval)
	}
	api, err := adminAPIOf(cmd)
	if err != nil {
		return err
	}
	query := poolsAsked(cmd)
	// What is wrong from the start is an error of the command's.
	first, _, err := api.snapshot(cmd.Context(), query)
	if err != nil {
		return err
	}
	in, out := cmd.InOrStdin(), cmd.OutOrStdout()
	if !isTerminal(in) || !isTerminal(out) || os.Getenv("TERM") == "dumb" {
		printFleet(out, first)
		return nil
	}
	m := &top{api: api, query: query, interval: interval, last: first, at: time.Now(),
		view: fleetView{colored: os.Getenv("NO_COLOR") == "", sorted: byLoad}}
	_, err = tea.NewProgram(m, tea.WithContext(cmd.Context()), tea.WithInput(in), tea.WithOutput(out)).Run()
	if errors.Is(err, tea.ErrInterrupted) {
		return nil
	}
	return err
}

func isTerminal(stream any) bool {
	file, is := stream.(interface{ Fd() uintptr })
	return is && term.IsTerminal(int(file.Fd()))
}

// top is the state of the terminal view. Bubbletea calls its methods one at a time.
type top struct {
	api      *adminAPI
	query    url.Values
	interval time.Duration

	last   *kvaware.Snapshot
	at     time.Time // of the last answer
	failed error     // why the last question had none

	view     fleetView
	height   int
	paused   bool
	scrolled int // lines
	rows     int // lines that could be scrolled when it was last shown
	asking   bool
}

// answered is the message that a snapshot came, or why not.
type answered struct {
	s   *kvaware.Snapshot
	at  time.Time
	err error
}

// due is the message that it is time to ask again.
type due struct{}

// Init implements tea.Model.
func (m *top) Init() tea.Cmd { return m.wait() }

func (m *top) wait() tea.Cmd {
	return tea.Tick(m.interval, func(time.Time) tea.Msg { return due{} })
}

// ask asks for a snapshot, on a goroutine of Bubbletea's.
func (m *top) ask() tea.Msg {
	ctx, cancel := context.WithTimeout(context.Background(), 5*time.Second)
	defer cancel()
	s, _, err := m.api.snapshot(ctx, m.query)
	return answered{s, time.Now(), err}
}

// Update implements tea.Model.
func (m *top) Update(msg tea.Msg) (tea.Model, tea.Cmd) {
	switch msg := msg.(type) {
	case tea.WindowSizeMsg:
		m.view.width, m.height = msg.Width, msg.Height
	case tea.KeyPressMsg:
		return m, m.pressed(msg.String())
	case due:
		if m.paused {
			return m, nil
		}
		m.asking = true
		return m, m.ask
	case answered:
		m.asking = false
		if m.failed = msg.err; msg.err == nil && !m.paused {
			m.last, m.at = msg.s, msg.at
		}
		return m, m.wait()
	}
	return m, nil
}

// pressed does what a key says.
func (m *top) pressed(key string) tea.Cmd {
	page := max(1, m.height-8)
	switch key {
	case "q", "esc", "ctrl+c":
		return tea.Quit
	case "ctrl+z":
		return tea.Suspend
	case "space", "p":
		m.paused = !m.paused
		if !m.paused && !m.asking {
			return func() tea.Msg { return due{} }
		}
	case "left", "<":
		m.view.sorted = (m.view.sorted + len(columns) - 1) % len(columns)
	case "right", ">":
		m.view.sorted = (m.view.sorted + 1) % len(columns)
	case "r":
		m.view.reverse = !m.view.reverse
	case "up", "k":
		m.scrolled--
	case "down", "j":
		m.scrolled++
	case "pgup":
		m.scrolled -= page
	case "pgdown":
		m.scrolled += page
	case "home":
		m.scrolled = 0
	case "end":
		m.scrolled = m.rows
	}
	m.scrolled = max(0, min(m.scrolled, m.rows))
	return nil
}

// View implements tea.Model.
func (m *top) View() tea.View {
	view := tea.NewView("")
	view.AltScreen = true
	view.WindowTitle = "kv_aware " + shown(m.api.address)
	if m.view.width > 0 && m.height > 0 { // else it is not known yet how large the terminal is
		view.Content = strings.Join(m.lines(), "\n")
	}
	return view
}

// lines fills the terminal, and never more: a title, what scrolls, and the keys.
func (m *top) lines() []string {
	title := fmt.Sprintf("kv_aware at %s, %s", shown(m.api.address), m.at.Format("15:04:05"))
	switch {
	case m.failed != nil:
		title = m.view.style(red, m.view.cut(fmt.Sprintf("Connection lost, as of %s: %s", m.at.Format("15:04:05"), harmless(m.failed.Error()))))
	case m.paused:
		title = m.view.style(yellow, m.view.cut(title+", stopped"))
	default:
		title = m.view.cut(title)
	}
	keys := m.view.style(dim, m.view.cut(fmt.Sprintf("q end  space %s  ←→ sort by %s  r reverse  ↑↓ scroll", map[bool]string{true: "go on", false: "stop"}[m.paused], columns[m.view.sorted].title)))

	head, body, tail := m.parts(m.height - 2)
	room := max(0, m.height-2-len(head)-len(tail))
	m.rows = max(0, len(body)-room)
	m.scrolled = max(0, min(m.scrolled, m.rows))
	body = body[m.scrolled:]
	body = body[:min(len(body), room)]
	lines := slices.Concat([]string{title}, head, body)
	for len(lines) < m.height-1-len(tail) {
		lines = append(lines, "")
	}
	lines = append(append(lines, tail...), keys)
	return lines[:min(len(lines), m.height)]
}

// parts are what stands above what scrolls, what scrolls, and what stands below it,
// in so many lines. What leaves no room for that scrolls too.
func (m *top) parts(room int) (head, body, tail []string) {
	for i := range m.last.Pools {
		lines := m.view.pool(&m.last.Pools[i])
		if len(m.last.Pools) == 1 {
			head, body, tail = lines.head, lines.rows, lines.decisions
			break
		}
		if i > 0 {
			body = append(body, "")
		}
		body = slices.Concat(body, lines.head, lines.rows, lines.decisions)
	}
	const fewest = 4
	if len(head)+fewest+len(tail) > room {
		body, tail = append(body, tail...), nil
	}
	if len(head)+fewest > room {
		body, head = append(head, body...), nil
	}
	return head, body, tail
}

// Interface guard
var _ tea.Model = (*top)(nil)
