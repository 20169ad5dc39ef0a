// SPDX-License-Identifier: Apache-2.0

package zmtp

import (
	"net"
	"strconv"
	"strings"
)

// maxPath is what a Unix socket's address has room for on Linux.
const maxPath = 107

// Endpoint is where a socket connects to or listens. Equal endpoints are ==.
type Endpoint struct {
	Network string // "tcp" or "unix"
	Address string // host:port, or a path; @name in Linux's abstract namespace
}

// ParseEndpoint reads tcp://host:port, an IPv6 address in brackets, or
// ipc:///path. To listen, the host may be * and the port * or 0, for any.
func ParseEndpoint(s string) (Endpoint, error) {
	bad := func(why string) (Endpoint, error) {
		return Endpoint{}, fault(BadEndpoint, "endpoint "+strconv.Quote(s)+": "+why)
	}
	scheme, rest, ok := strings.Cut(s, "://")
	if !ok {
		return bad("no scheme: write tcp://host:port or ipc:///path")
	}
	switch scheme {
	case "tcp":
		return parseTCP(rest, bad)
	case "ipc", "unix":
		switch {
		case rest == "" || rest == "*":
			return bad("no path: write ipc:///path")
		case len(rest) > maxPath:
			return bad("the path is longer than " + strconv.Itoa(maxPath) + " bytes, which a Unix socket has no room for")
		case strings.ContainsRune(rest, 0):
			return bad("a zero byte in the path")
		}
		return Endpoint{"unix", rest}, nil
	}
	return bad("transport " + strconv.Quote(scheme) + " is not supported: use tcp or ipc")
}

func parseTCP(rest string, bad func(string) (Endpoint, error)) (Endpoint, error) {
	if strings.Contains(rest, ";") {
		return bad("a source address is not supported: write tcp://host:port")
	}
	host, port, err := net.SplitHostPort(rest)
	switch {
	case err != nil && strings.Count(rest, ":") > 1 && !strings.HasPrefix(rest, "["):
		return bad("an IPv6 address goes in brackets: tcp://[::1]:5557")
	case err != nil:
		return bad("no host and port: write tcp://host:port")
	case host == "":
		return bad("no host: write tcp://host:port, or tcp://*:port to listen on all addresses")
	case strings.ContainsAny(host, " \t\r\n/\x00"):
		return bad("not a host: " + strconv.Quote(host))
	}
	if port == "*" {
		port = "0"
	}
	number, err := strconv.ParseUint(port, 10, 16)
	if err != nil {
		return bad("the port is a number from 1 to 65535")
	}
	if host == "*" {
		host = ""
	}
	return Endpoint{"tcp", net.JoinHostPort(host, strconv.FormatUint(number, 10))}, nil
}

// String returns the endpoint as ParseEndpoint reads it.
func (e Endpoint) String() string {
	if e.Network == "unix" {
		return "ipc://" + e.Address
	}
	if strings.HasPrefix(e.Address, ":") {
		return "tcp://*" + e.Address
	}
	return "tcp://" + e.Address
}

// dialable returns an error if one can listen there but not connect to it.
func (e Endpoint) dialable() error {
	if e.Network == "unix" {
		return nil
	}
	host, port, err := net.SplitHostPort(e.Address)
	if err != nil || host == "" || port == "0" {
		return fault(BadEndpoint, "endpoint "+strconv.Quote(e.String())+": connecting needs a host and a port")
	}
	return nil
}
