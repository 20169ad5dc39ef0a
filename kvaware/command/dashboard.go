// SPDX-License-Identifier: Apache-2.0

package command

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/url"
	"os"
	"os/exec"
	"os/signal"
	"runtime"
	"syscall"
	"time"

	"github.com/spf13/cobra"

	"github.com/kvaware/caddy-kvaware/kvaware/internal/dashboard"
)

func dashboardCommand() *cobra.Command {
	cmd := &cobra.Command{
		Use:   "dashboard [--listen <address>] [--no-open]",
		Short: "Shows a live page of a running Caddy's upstreams and decisions",
		Long: `Opens a live page in the browser that shows where the load is, why requests went
where they went, and what the caches are worth, by what the admin API of a running
Caddy tells. It is served until interrupted, on the loopback interface: who can
connect there sees the page.

To serve it to others, put kv_aware_dashboard into a site of the Caddyfile, behind
authentication.`,
		Example: `  caddy kv-aware dashboard
  caddy kv-aware dashboard --listen 127.0.0.1:8081 --no-open`,
		Args: cobra.NoArgs,
		RunE: runDashboard,
	}
	cmd.Flags().StringP("listen", "l", "127.0.0.1:2020", "Loopback address to serve the page at; port 0 takes any")
	cmd.Flags().BoolP("no-open", "", false, "Do not open the browser")
	addAdminFlags(cmd)
	return cmd
}

func runDashboard(cmd *cobra.Command, _ []string) error {
	api, err := adminAPIOf(cmd)
	if err != nil {
		return err
	}
	source := &adminSource{api: api, query: url.Values{}}
	if f := cmd.Flag("pool"); f.Changed {
		source.query.Set("pool", f.Value.String())
	}
	ctx, stop := signal.NotifyContext(cmd.Context(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	if err := source.check(ctx); err != nil {
		return err
	}
	listener, err := listenLoopback(cmd)
	if err != nil {
		return err
	}
	address := "http://" + listener.Addr().String() + "/"
	fmt.Fprintf(cmd.OutOrStdout(), "The dashboard of the Caddy at %s is at %s\nInterrupt with Ctrl+C.\n", api.address, address)
	if quiet, _ := cmd.Flags().GetBool("no-open"); !quiet {
		if err := openBrowser(address); err != nil {
			fmt.Fprintf(cmd.ErrOrStderr(), "The browser could not be opened (%v): open that address in one.\n", err)
		}
	}
	return serveDashboard(ctx, listener, source)
}

// serveDashboard serves until ctx ends.
func serveDashboard(ctx context.Context, listener net.Listener, source dashboard.Source) error {
	handler := dashboard.NewHandler(dashboard.NewHub(source))
	server := &http.Server{Handler: ownHost(listener.Addr(), handler), ReadHeaderTimeout: 10 * time.Second}
	server.RegisterOnShutdown(handler.Close)
	stopped := context.AfterFunc(ctx, func() {
		ended, cancel := context.WithTimeout(context.Background(), time.Second)
		defer cancel()
		if server.Shutdown(ended) != nil {
			_ = server.Close()
		}
	})
	defer stopped()
	if err := server.Serve(listener); !errors.Is(err, http.ErrServerClosed) {
		return err
	}
	return nil
}

// listenLoopback listens where the flags say.
func listenLoopback(cmd *cobra.Command) (net.Listener, error) {
	flag := cmd.Flag("listen")
	host, _, err := net.SplitHostPort(flag.Value.String())
	if err != nil {
		return nil, fmt.Errorf("--listen %q: give an address such as 127.0.0.1:2020", flag.Value.String())
	}
	if ip := net.ParseIP(host); host != "localhost" && (ip == nil || !ip.IsLoopback()) {
		return nil, fmt.Errorf("--listen %q: it asks nobody who they are, so only addresses such as 127.0.0.1 or [::1] are served; for others, put kv_aware_dashboard into a site, behind authentication", flag.Value.String())
	}
	listener, err := net.Listen("tcp", flag.Value.String())
	if err != nil && !flag.Changed {
		listener, err = net.Listen("tcp", net.JoinHostPort(host, "0"))
	}
	if err != nil {
		return nil, fmt.Errorf("%w: give another address with --listen", err)
	}
	return listener, nil
}

// ownHost lets only requests through that name the address itself: a site whose
// name is made to resolve to it gets nothing.
func ownHost(address net.Addr, next http.Handler) http.Handler {
	_, port, err := net.SplitHostPort(address.String())
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		host, asked, splitErr := net.SplitHostPort(r.Host)
		if ip := net.ParseIP(host); err != nil || splitErr != nil || asked != port || host != "localhost" && (ip == nil || !ip.IsLoopback()) {
			http.Error(w, "the dashboard is only served under its loopback address", http.StatusForbidden)
			return
		}
		next.ServeHTTP(w, r)
	})
}

// openBrowser opens an address in the user's browser.
func openBrowser(address string) error {
	name, args := "xdg-open", []string{address}
	switch runtime.GOOS {
	case "darwin":
		name = "open"
	case "windows":
		name, args = "rundll32", []string{"url.dll,FileProtocolHandler", address}
	}
	command := exec.Command(name, args...) //nolint:gosec // the address is our own
	if err := command.Start(); err != nil {
		return err
	}
	go func() { _ = command.Wait() }() // it ends when it has handed the address on
	return nil
}

// adminSource is a Caddy behind its admin API.
type adminSource struct {
	api   *adminAPI
	query url.Values // of each question
}

// check finds out whether there is something to show.
func (s *adminSource) check(ctx context.Context) error {
	_, _, err := s.api.snapshot(ctx, s.with(nil))
	return err
}

func (s *adminSource) Snapshot(ctx context.Context, history bool) ([]byte, error) {
	query := s.with(nil)
	if history {
		query.Set("history", "1")
	}
	return s.api.call(ctx, http.MethodGet, "/kv_aware/snapshot", query, nil)
}

func (s *adminSource) Ask(question string, q dashboard.Question) (int, []byte) {
	body, err := io.ReadAll(io.LimitReader(q.Body, maxBody+1))
	if err == nil && len(body) > maxBody {
		err = fmt.Errorf("the body is longer than %d bytes", maxBody)
	}
	var answer []byte
	if err == nil {
		answer, err = s.api.call(q.Context, http.MethodPost, "/kv_aware/"+question, s.with(q.Query), body)
	}
	if err == nil {
		return http.StatusOK, answer
	}
	told, _ := json.Marshal(map[string]string{"error": err.Error()}) // a text always can be
	return http.StatusBadGateway, told
}

// with gives a query with the pool that the command was told.
func (s *adminSource) with(query url.Values) url.Values {
	all := url.Values{}
	for name, values := range query {
		all[name] = values
	}
	for name, values := range s.query {
		all[name] = values
	}
	return all
}
