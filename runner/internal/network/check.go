package network

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"net"
	"slices"
	"strconv"
	"time"

	"github.com/caisson-run/caisson/sandbox"
	"github.com/caisson-run/caisson/sandbox/guest/wire"
	"github.com/caisson-run/caisson/tools/egress"
)

// Attempts that must fail under every policy: a connection past the proxy, to an address
// that stands for all public ones; a connection through the proxy to a port of the host; and a
// lookup of a name that can't exist (RFC 6761).
const (
	checkHost = "::1" // the guest serves 127.0.0.0/8 itself
	checkPort = 9
	checkName = "caisson-check.invalid"
)

// publicTarget is in TEST-NET-3 (RFC 5737): a route to public addresses covers it, and nobody
// there receives packets.
var publicTarget = wire.Target{IP: []byte{203, 0, 113, 1}, Port: 443}

// reachTime bounds the guest's attempts, each of which takes a second at most.
const reachTime = 20 * time.Second

// LeakError reports that a command reached a network that it must not reach, or got no answer
// where the proxy must answer.
type LeakError struct {
	// Tried describes the attempt, Got its result, and Want the required one.
	Tried, Got, Want string
}

func (e *LeakError) Error() string {
	return fmt.Sprintf("check the network of commands: %s had the result %s instead of %s", e.Tried, e.Got, e.Want)
}

// Check runs a command in a sandbox whose connections are served, to verify that only the proxy
// leads out, that the proxy refuses, and that impossible names don't resolve. It returns a
// *[LeakError] if that isn't so.
func Check(ctx context.Context, box sandbox.Sandbox) error {
	public, proxy, name := publicTarget.String(), wire.ByProxy+net.JoinHostPort(checkHost, strconv.Itoa(checkPort)), wire.ByName+checkName
	r, err := TryReach(ctx, box, true, public, proxy, name)
	if err != nil {
		return fmt.Errorf("check the network of commands: %w", err)
	}
	if !slices.Equal(r.Interfaces, []string{"lo"}) {
		return &LeakError{Tried: "a list of the interfaces", Got: fmt.Sprint(r.Interfaces), Want: "[lo]"}
	}
	for _, c := range []struct{ tried, target, want string }{
		{"a connection to a public address", public, "ENETUNREACH"},
		{"CONNECT to this machine", proxy, "403"},
		{"a lookup of a name that can't exist", name, wire.NameUnknown},
	} {
		if got := r.Results[c.target]; got != c.want {
			return &LeakError{Tried: c.tried, Got: got, Want: c.want}
		}
	}
	return nil
}

// TryReach lets the guest of a sandbox try to reach targets, of which [wire.Reach] has the results.
// With proxy, it runs like a command that has a network.
func TryReach(ctx context.Context, box sandbox.Sandbox, proxy bool, targets ...string) (wire.Reach, error) {
	var out, errs bytes.Buffer
	var r wire.Reach
	p, err := box.Start(ctx, sandbox.Command{
		Argv: append([]string{sandbox.GuestPath, wire.ReachWord}, targets...), Stdout: &out, Stderr: &errs, Timeout: reachTime, Proxy: proxy,
	})
	if err != nil {
		return r, err
	}
	exit, err := p.Wait()
	if err != nil {
		return r, err
	}
	if err := json.Unmarshal(out.Bytes(), &r); err != nil || !exit.Status.Success() {
		return r, fmt.Errorf("%s, with %q", exit.Status, errs.String())
	}
	return r, nil
}

func isCheck(d egress.Denied) bool {
	return d.Host == checkName || d.Host == checkHost && d.Port == checkPort
}
