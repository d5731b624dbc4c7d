package main

import (
	"context"
	"errors"
	"net"
	"path/filepath"
	"strconv"
	"strings"
	"sync"

	"github.com/caisson-run/caisson/limits"
	"github.com/caisson-run/caisson/runner"
	"github.com/caisson-run/caisson/tools/egress"
	"github.com/caisson-run/caisson/tools/egress/rule"
	"github.com/caisson-run/caisson/tools/mcp/oauth"
)

// tokenStore returns the store of tokens in a state directory, or nil for "".
func tokenStore(stateDir string) *oauth.Store {
	if stateDir == "" {
		return nil
	}
	return oauth.NewStore(filepath.Join(stateDir, "mcp-tokens"))
}

// loginDeniedError is returned if the server named a host that its rules don't allow.
type loginDeniedError struct {
	// Host is the refused host, with its port unless that is 443. Reason is one of
	// package rule's.
	Host, Reason string
	Err          error
}

// Origin returns the origin of the host, with http only for this machine.
func (e *loginDeniedError) Origin() string {
	for _, local := range []string{"localhost", "127.", "[::1]"} {
		if strings.HasPrefix(e.Host, local) {
			return "http://" + e.Host
		}
	}
	return "https://" + e.Host
}

func (e *loginDeniedError) Error() string {
	return "the server names " + e.Host + " for signing in, which is refused (" + e.Reason + "): " + e.Err.Error()
}

func (e *loginDeniedError) Unwrap() error { return e.Err }

// obtainToken obtains and stores a token. See [oauth.Login]. All requests are subject
// to the server's rules, as in a session. If one was refused, it returns a
// *loginDeniedError.
func obtainToken(ctx context.Context, o oauth.LoginOptions, rules runner.EgressOptions) error {
	guard, err := rule.NewGuard(rules.Private)
	if err != nil {
		return err
	}
	budget, err := limits.NewEgress(rules.Budget)
	if err != nil {
		return err
	}
	var mu sync.Mutex
	var denied *loginDeniedError
	deny := func(host string, port uint16, reason string) {
		mu.Lock()
		defer mu.Unlock()
		if denied == nil {
			denied = &loginDeniedError{Host: host, Reason: reason}
			if port != 0 && port != 443 {
				denied.Host = net.JoinHostPort(host, strconv.Itoa(int(port)))
			}
		}
	}
	network, err := egress.New(egress.Options{
		Policy: rules.Policy, Guard: guard, Budget: budget, Upstream: rules.Upstream,
		Opened: func(egress.Opened) error { return nil }, Closed: func(egress.Closed) {}, Requested: func(egress.Requested) {}, Failed: func(error) {},
		Denied: func(d egress.Denied) { deny(d.Host, d.Port, d.Reason) },
	})
	if err != nil {
		return err
	}
	defer network.Close()
	o.Client = oauth.NewClient(network.RoundTripper())
	o.Allow = func(endpoint rule.Target, method string) error {
		if d := rules.Policy.DecideRequest(endpoint, method); !d.Allowed() {
			deny(endpoint.Host, endpoint.Port, d.Reason)
			return errors.New("the rules of the server don't allow " + endpoint.Origin.String())
		}
		return nil
	}
	err = oauth.Login(ctx, o)
	o.Client.CloseIdleConnections()
	mu.Lock()
	defer mu.Unlock()
	if err == nil || denied == nil || ctx.Err() != nil || errors.Is(err, oauth.ErrNotNeeded) {
		return err
	}
	denied.Err = err
	return denied
}
