// Package network is the network of one session's commands. It serves the connections of the
// session's sandboxes with a tools/egress.Server, records them below the calls that made them,
// passes on questions about hosts, and counts. It knows the session only by the functions in
// its options.
package network

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"net/url"
	"slices"
	"strconv"
	"sync"
	"sync/atomic"
	"time"

	"github.com/oklog/ulid/v2"
	"go.uber.org/zap"

	"github.com/caisson-run/caisson/limits"
	"github.com/caisson-run/caisson/runner/internal/linelog"
	"github.com/caisson-run/caisson/runner/record"
	"github.com/caisson-run/caisson/runner/redact"
	"github.com/caisson-run/caisson/sandbox"
	"github.com/caisson-run/caisson/tools/approval"
	"github.com/caisson-run/caisson/tools/dispatch"
	"github.com/caisson-run/caisson/tools/egress"
	"github.com/caisson-run/caisson/tools/egress/preset"
	"github.com/caisson-run/caisson/tools/egress/rule"
	"github.com/caisson-run/caisson/tools/egress/secret"
	"github.com/caisson-run/caisson/tools/shell"
)

// Options configures a [Network]. Dir, Record and Log are required.
type Options struct {
	// Policy is for commands. If it is nil, only Servers have a network.
	Policy   *rule.Policy
	Private  map[string][]netip.Prefix
	Upstream *url.URL
	Capture  bool
	Budget   limits.EgressBudget
	// Presets, GitFetch, GitPush, Secrets and CA are as in runner.EgressOptions.
	Presets           []*preset.Preset
	GitFetch, GitPush []string
	Secrets           []secret.Secret
	CA                []byte
	// Servers are the MCP servers with their own network.
	Servers []Server
	// Local is as in [egress.Options].
	Local map[string]egress.Local
	// KeepFiles keeps registries' files in CacheDir, or if that is "", for the session.
	KeepFiles          bool
	CacheDir, LockFile string
	// End is when the session's last turn ends at the latest, or zero if unknown.
	End time.Time
	// Dir is the session's directory. Requests are kept there, without Hidden.
	Dir    string
	Hidden []redact.Secret
	// Record writes a record below a call or, for "", below the model's last answer. With
	// sync, the record is on disk when it returns.
	Record func(call string, p record.Payload, sync bool) error
	// Ask asks about a host; nil refuses hosts without a rule.
	Ask func(ctx context.Context, q dispatch.HostQuestion) (approval.Resolution, error)
	// AskAddress is as in [egress.Options].
	AskAddress bool
	Log        *zap.Logger
}

// Network is the network of one session. It is safe for concurrent use.
type Network struct {
	opts Options
	// reserved reports that only servers have a network.
	reserved bool
	server   *egress.Server
	allowed  []string
	requests *linelog.Log
	redactor *redact.Redactor
	setup    setup
	// servers are the servers of Options.Servers, by name.
	servers map[string]*member

	mu sync.Mutex
	// running are the running commands, oldest first.
	running []*command
	// owners are the identities of servers' running commands, by number.
	owners map[int]int
	// calls are the calls of open connections, by the connection's number.
	calls map[int64]string
	// written counts the records apart from refusals and from the first for each host in
	// recorded. refusals counts the records of refusals.
	written, refusals int
	recorded          map[string]bool
	totals            record.NetworkTotals
}

type command struct {
	call, script string
	number       int // 0 until it is known
}

// New returns the network of a session. It must be closed.
func New(o Options) (*Network, error) {
	n := &Network{opts: o, servers: map[string]*member{}, owners: map[int]int{}, calls: map[int64]string{}, recorded: map[string]bool{}}
	if o.Policy == nil {
		n.opts.Policy, n.reserved = &rule.Policy{}, true
	}
	guard, err := rule.NewGuard(o.Private)
	if err != nil {
		return nil, fmt.Errorf("make network: %w", err)
	}
	budget, err := limits.NewEgress(o.Budget)
	if err != nil {
		return nil, fmt.Errorf("make network: %w", err)
	}
	for _, r := range n.opts.Policy.Allow {
		n.allowed = append(n.allowed, r.String())
	}
	n.openRequestLog(o)
	server := egress.Options{
		Policy: n.opts.Policy, Guard: guard, Budget: budget, Upstream: o.Upstream, Names: &egress.Names{}, Numbers: &atomic.Int64{}, Local: o.Local, Failed: n.logPanic,
	}
	agent := &member{n: n}
	agent.report(&server)
	if o.Ask != nil {
		server.Ask, server.AskAddress = n.ask, o.AskAddress
	}
	if err := n.prepare(&server); err != nil {
		return nil, fmt.Errorf("make network: %w", err)
	}
	if n.server, err = egress.New(server); err != nil {
		return nil, fmt.Errorf("make network: %w", err)
	}
	for _, m := range n.servers {
		if err := m.start(server); err != nil {
			n.Close()
			return nil, fmt.Errorf("make network of %s: %w", m.Name, err)
		}
	}
	return n, nil
}

// Plan returns a sandbox's listeners and what its programs need besides. It is nil for a nil
// Network, and if no program in the sandbox has a network.
func (n *Network) Plan() *sandbox.EgressPlan {
	if n == nil || len(n.policies())+len(n.opts.Local) == 0 {
		return nil
	}
	return n.setup.plan
}

func (n *Network) newPlan() *sandbox.EgressPlan {
	p := &sandbox.EgressPlan{Names: true, Reserved: n.reserved}
	var ports []uint16
	for _, policy := range n.policies() {
		ports = append(ports, 22)
		all := policy.Ports() // the last one stands for all others
		ports = append(ports, all[:len(all)-1]...)
	}
	switch {
	case n.opts.Capture || p.Reserved:
	case len(n.opts.Local) > 0:
		ports = nil
	default:
		return p
	}
	if len(n.opts.Local) > 0 {
		ports = append(ports, egress.LocalPort)
	}
	for _, port := range ports {
		if port := int(port); port != 53 && port != p.ProxyPort() && len(p.Capture) < sandbox.MaxCapturePorts && !slices.Contains(p.Capture, port) {
			p.Capture = append(p.Capture, port)
		}
	}
	slices.Sort(p.Capture)
	return p
}

// BindSandbox serves the connections of a sandbox, and returns a *[LeakError] if there is
// another way out of it.
func (n *Network) BindSandbox(ctx context.Context, box sandbox.Sandbox) error {
	server, ok := box.(sandbox.EgressServer)
	if !ok {
		return fmt.Errorf("%w: the sandbox has no network for commands", sandbox.ErrUnsupported)
	}
	handler, err := n.newHandler(box.Attestation())
	if err != nil {
		return err
	}
	server.Serve(handler)
	return Check(ctx, box)
}

// TrackCommand implements livesandbox.Network.
func (n *Network) TrackCommand(callID, script string) (notify func(number int), refused func(ended bool) ([]shell.Refused, []string)) {
	c := &command{call: callID, script: script}
	n.mu.Lock()
	defer n.mu.Unlock()
	n.running = append(n.running, c)
	notify = func(number int) {
		n.mu.Lock()
		defer n.mu.Unlock()
		c.number = number
	}
	return notify, func(ended bool) ([]shell.Refused, []string) { return n.takeRefused(c, ended) }
}

// takeRefused returns the connections refused to a command, and forgets the command if it has
// ended. Refusals to unknown commands count as its own if no other runs.
func (n *Network) takeRefused(c *command, ended bool) ([]shell.Refused, []string) {
	n.mu.Lock()
	number, alone := c.number, len(n.running) == 1 && n.running[0] == c
	n.mu.Unlock()
	if ended { // after its refusals are recorded
		defer func() {
			n.mu.Lock()
			defer n.mu.Unlock()
			n.running = slices.DeleteFunc(n.running, func(o *command) bool { return o == c })
		}()
	}
	if ended && number != 0 {
		n.server.EndCommand(number)
	}
	var denied []egress.Denied
	if number != 0 {
		denied = n.server.Denials(number)
	}
	if alone {
		denied = slices.Concat(denied, n.server.Denials(0))
	}
	var out []shell.Refused
	for _, d := range denied {
		if isCheck(d) {
			continue
		}
		one := shell.Refused{Host: hostOf(d.Host, d.Port), Reason: d.Reason, Count: d.Count}
		same := slices.IndexFunc(out, func(o shell.Refused) bool { return o.Host == one.Host && o.Reason == one.Reason })
		if same >= 0 {
			out[same].Count += one.Count
			continue
		}
		out = append(out, one)
	}
	if out == nil {
		return nil, nil
	}
	return out, n.allowed
}

func hostOf(host string, port uint16) string {
	host = cmp.Or(host, "unknown host")
	if port == 0 {
		return host
	}
	return net.JoinHostPort(host, strconv.Itoa(int(port)))
}

// commandOf returns the command with a number or, for 0, the only one that runs, or nil.
func (n *Network) commandOf(number int) *command {
	n.mu.Lock()
	defer n.mu.Unlock()
	switch at := slices.IndexFunc(n.running, func(c *command) bool { return number != 0 && c.number == number }); {
	case at >= 0:
		return n.running[at]
	case number == 0 && len(n.running) == 1:
		return n.running[0]
	}
	return nil
}

// callOf returns a command's call, or "" if it is unknown or a server's.
func (n *Network) callOf(server string, number int) string {
	if server != "" {
		return ""
	}
	if c := n.commandOf(number); c != nil {
		return c.call
	}
	return ""
}

var errNoCommand = errors.New("no call of a tool is known that wants to connect")

// ask asks about a host for the call of a command or, if that is unknown, of the last one.
func (n *Network) ask(ctx context.Context, q egress.Question) (egress.Answer, error) {
	c, text := n.commandOf(q.Command), ""
	if c != nil {
		text = c.script
	} else {
		n.mu.Lock()
		if len(n.running) > 0 && q.Command == 0 {
			c, text = n.running[len(n.running)-1], fmt.Sprintf("one of %d commands that run", len(n.running))
		}
		n.mu.Unlock()
	}
	if c == nil || c.call == "" {
		return egress.Answer{}, errNoCommand
	}
	question := dispatch.HostQuestion{CallID: c.call, Host: q.Host, Port: q.Port, Command: text, Rule: q.Rule}
	if q.Addr.IsValid() {
		question.Addr = q.Addr.String()
	}
	if q.Display != q.Host {
		question.Display = q.Display
	}
	r, err := n.opts.Ask(ctx, question)
	a := egress.Answer{Verdict: egress.VerdictOnce, Reason: r.Reason, Unasked: r.By == approval.ByDecider || r.RequestID == ""}
	switch {
	case err != nil:
		return a, err
	case r.By == approval.ByCancel || r.Decision == approval.DecisionTimeout:
		return a, fmt.Errorf("the question was not answered (%s)", r.By)
	case r.Decision != approval.DecisionAllow:
		a.Verdict = egress.VerdictDeny
	case r.Scope == approval.ScopeAlways:
		a.Verdict = egress.VerdictAlways
	}
	return a, nil
}

// maxRefusals bounds the records of refusals. A program can cause any number of them, and must
// not be able to crowd out the records of its connections.
const maxRefusals = record.MaxNetworkRecords / 2

// takeRefusal reports whether another refusal may be recorded, and counts it.
func (n *Network) takeRefusal() bool {
	n.mu.Lock()
	defer n.mu.Unlock()
	if n.refusals >= maxRefusals {
		n.totals.Unrecorded++
		return false
	}
	n.refusals++
	return true
}

// takeOpening reports whether another connection to a host may be recorded, and counts it. The
// first one to each host always may.
func (n *Network) takeOpening(host string) bool {
	n.mu.Lock()
	defer n.mu.Unlock()
	switch {
	case !n.recorded[host] && len(n.recorded) < maxHosts:
		n.recorded[host] = true
	case n.written < record.MaxNetworkRecords-maxRefusals-maxHosts:
		n.written++
	default:
		n.totals.Unrecorded++
		return false
	}
	return true
}

// maxHosts bounds the hosts whose first connection is always recorded.
const maxHosts = 100

// recordOpened records that a connection is about to be made by a server or, for "", by the
// agent's commands.
func (n *Network) recordOpened(server string, o egress.Opened) error {
	call := n.callOf(server, o.Command)
	n.mu.Lock()
	n.totals.Connections++
	n.mu.Unlock()
	if !n.takeOpening(hostOf(o.Host, o.Port)) {
		return nil
	}
	p := record.NetworkOpened{CallID: call, Server: server, Conn: o.ID, Command: o.Command, Way: string(o.Way), Host: hostOf(o.Host, o.Port), Rule: o.Rule, By: "rule"}
	if o.Asked {
		p.By = "answer"
	}
	if err := n.opts.Record(call, p, true); err != nil {
		return err
	}
	n.mu.Lock()
	defer n.mu.Unlock()
	n.calls[o.ID] = call
	return nil
}

func (n *Network) recordClosed(server string, c egress.Closed) {
	n.mu.Lock()
	n.totals.Sent += c.Sent
	n.totals.Received += c.Received
	n.totals.Requests += int64(c.Requests)
	call, recorded := n.calls[c.ID]
	delete(n.calls, c.ID)
	n.mu.Unlock()
	if !recorded { // its opening is counted as unrecorded
		return
	}
	p := record.NetworkClosed{
		CallID: call, Server: server, Conn: c.ID, Host: hostOf(c.Host, c.Port), SNI: c.SNI, Sent: c.Sent, Received: c.Received,
		Requests: int64(c.Requests), WallMS: c.Duration.Milliseconds(), Ending: c.Ending,
	}
	if c.Addr.IsValid() {
		p.Addr = c.Addr.String()
	}
	n.logFailure("end of a connection", n.opts.Record(call, p, false))
}

func (n *Network) recordDenied(server string, d egress.Denied) {
	if isCheck(d) {
		return
	}
	call := n.callOf(server, d.Command)
	n.mu.Lock()
	n.totals.Denied += int64(d.Count)
	n.mu.Unlock()
	if !n.takeRefusal() {
		return
	}
	p := record.NetworkDenied{
		CallID: call, Server: server, URL: d.URL, Host: hostOf(d.Host, d.Port), Reason: d.Reason, Way: string(d.Way), Command: d.Command, Rule: d.Rule, Method: d.Method,
	}
	if d.Addr.IsValid() {
		p.Addr = d.Addr.String()
	}
	if d.Count > 1 {
		p.Count = int64(d.Count)
	}
	n.logFailure("refusal", n.opts.Record(call, p, false))
}

// logFailure logs a failed record. The next record that must be on disk fails too, and the
// session with it.
func (n *Network) logFailure(what string, err error) {
	if err != nil {
		n.opts.Log.Error("record network: "+what, zap.Error(err))
	}
}

// logPanic logs a panic under an ID. A stack contains no values of programs or keys.
func (n *Network) logPanic(err error) {
	fields := []zap.Field{zap.String("error_id", "err_"+ulid.Make().String()), zap.Error(err)}
	if p, ok := errors.AsType[*egress.PanicError](err); ok {
		fields = append(fields, zap.ByteString("stack", p.Stack))
	}
	n.opts.Log.Error("a connection of a command panicked", fields...)
}

// Close ends all connections and returns the totals. Nothing may use the sandbox any more.
func (n *Network) Close() record.NetworkTotals {
	if n.server != nil {
		n.server.Close()
	}
	for _, m := range n.servers {
		if m.server != nil {
			m.server.Close()
		}
	}
	n.mu.Lock()
	defer n.mu.Unlock()
	t := n.totals
	hash, omitted, err := n.requests.Close()
	n.logFailure("requests", err)
	n.logFailure("cache", n.closeCache())
	t.RequestsSHA256 = hash
	t.Unrecorded += omitted
	return t
}
