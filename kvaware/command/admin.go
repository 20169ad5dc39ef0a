// SPDX-License-Identifier: Apache-2.0

package command

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/url"
	"strings"
	"time"

	"github.com/caddyserver/caddy/v2"
	caddycmd "github.com/caddyserver/caddy/v2/cmd"
	"github.com/spf13/cobra"
)

// addAdminFlags adds the flags with which Caddy's own commands find the admin API,
// and the one that tells which of its pools is meant.
func addAdminFlags(cmd *cobra.Command) {
	cmd.Flags().StringP("pool", "", "", "Pool of the running instance (default: the one without a name, else the only one)")
	cmd.Flags().StringP("address", "", "", "Address of the admin API")
	cmd.Flags().StringP("config", "c", "", "Configuration file to take that address from")
	cmd.Flags().StringP("adapter", "a", "", "Name of config adapter to apply")
}

// adminAPI is the admin API of a running Caddy.
type adminAPI struct {
	address string // as it was given
	origin  string // scheme and host of its URLs
	client  http.Client
	// patience is how long a whole answer may take.
	patience time.Duration
}

// adminAPIOf finds the admin API that a command's flags mean.
func adminAPIOf(cmd *cobra.Command) (*adminAPI, error) {
	flags := caddycmd.Flags{FlagSet: cmd.Flags()}
	address, err := caddycmd.DetermineAdminAPIAddress(flags.String("address"), nil, flags.String("config"), flags.String("adapter"))
	if err != nil {
		return nil, fmt.Errorf("finding the admin API: %w", err)
	}
	parsed, err := caddy.ParseNetworkAddress(address)
	if err != nil || parsed.PortRangeSize() > 1 || !parsed.IsUnixNetwork() && parsed.StartPort == 0 {
		return nil, fmt.Errorf("no address of an admin API: %q: give one such as %s with --address", address, caddy.DefaultAdminListen)
	}
	a := &adminAPI{address: address, origin: "http://" + parsed.JoinHostPort(0), patience: time.Minute}
	if parsed.IsUnixNetwork() {
		a.origin = "http://127.0.0.1"                     // a host that the admin API takes
		parsed.Host, _, _ = strings.Cut(parsed.Host, "|") // permissions may follow
	}
	a.client.Transport = &http.Transport{
		DisableKeepAlives: true,
		DialContext: func(ctx context.Context, _, _ string) (net.Conn, error) {
			dialer := net.Dialer{Timeout: 10 * time.Second}
			return dialer.DialContext(ctx, parsed.Network, parsed.JoinHostPort(0))
		},
	}
	return a, nil
}

// maxAnswer bounds what is read of an answer, in bytes.
const maxAnswer = 256 << 20

// call gives the answer to a request, whose body may be nil. Errors say what
// to do.
func (a *adminAPI) call(ctx context.Context, method, path string, query url.Values, body []byte) ([]byte, error) {
	ctx, cancel := context.WithTimeout(ctx, a.patience)
	defer cancel()
	res, err := a.ask(ctx, method, path, query, body)
	if err != nil {
		return nil, err
	}
	return a.read(res)
}

// read takes an answer whole.
func (a *adminAPI) read(res *http.Response) ([]byte, error) {
	defer res.Body.Close()
	answer, err := io.ReadAll(io.LimitReader(res.Body, maxAnswer))
	if err != nil {
		return nil, a.brokenOff(err)
	}
	return answer, nil
}

// brokenOff words that an answer did not come to its end.
func (a *adminAPI) brokenOff(err error) error {
	return fmt.Errorf("the answer of %s breaks off: %w", a.address, err)
}

// ask gives the answer to a request as it comes, if it is a success.
func (a *adminAPI) ask(ctx context.Context, method, path string, query url.Values, body []byte) (*http.Response, error) {
	target := a.origin + path
	if len(query) > 0 {
		target += "?" + query.Encode()
	}
	req, err := http.NewRequestWithContext(ctx, method, target, bytes.NewReader(body))
	if err != nil {
		return nil, err
	}
	if len(body) > 0 {
		req.Header.Set("Content-Type", "application/json")
	}
	res, err := a.client.Do(req)
	if err != nil {
		return nil, failure{fmt.Errorf("no Caddy answers at %s: %w: is it running, with the admin API at that address (--address, --config)?", a.address, cause(err)), exitNoCaddy}
	}
	if res.StatusCode == http.StatusOK {
		return res, nil
	}
	answer, err := a.read(res)
	if err != nil {
		return nil, err
	}
	var refusal struct {
		Error string `json:"error"`
	}
	switch {
	case json.Unmarshal(answer, &refusal) == nil && refusal.Error != "":
		err = fmt.Errorf("the Caddy at %s says: %s", a.address, harmless(refusal.Error))
	case res.StatusCode == http.StatusNotFound:
		err = fmt.Errorf("the Caddy at %s has no %s: it was built without kv_aware, or with another version of it", a.address, path)
	default:
		return nil, fmt.Errorf("the Caddy at %s answers %s", a.address, harmless(res.Status))
	}
	if res.StatusCode == http.StatusNotFound {
		err = failure{err, exitNoPolicy}
	}
	return nil, err
}

// noPolicy is what is said of a Caddy that has nothing to show.
func (a *adminAPI) noPolicy() error {
	return failure{fmt.Errorf("the Caddy at %s has no proxy with lb_policy kv_aware in its configuration", a.address), exitNoPolicy}
}

// cause takes off what the client says of the request.
func cause(err error) error {
	if wrapped, ok := err.(*url.Error); ok {
		return wrapped.Err
	}
	return err
}
