package runner

import (
	"cmp"
	"context"
	"fmt"
	"io"
	"net/netip"
	"net/url"
	"path/filepath"
	"slices"
	"time"

	"go.uber.org/zap"

	"github.com/caisson-run/caisson/limits"
	"github.com/caisson-run/caisson/loop/worker"
	"github.com/caisson-run/caisson/runner/internal/livesandbox"
	"github.com/caisson-run/caisson/runner/record"
	"github.com/caisson-run/caisson/runner/redact"
	"github.com/caisson-run/caisson/sandbox"
	"github.com/caisson-run/caisson/tools"
	"github.com/caisson-run/caisson/tools/egress/rule"
	"github.com/caisson-run/caisson/tools/fetch"
	"github.com/caisson-run/caisson/tools/file"
	"github.com/caisson-run/caisson/tools/memory"
	"github.com/caisson-run/caisson/tools/shell"
	"github.com/caisson-run/caisson/tools/skill"
	"github.com/caisson-run/caisson/tools/verify"
	"github.com/caisson-run/caisson/tools/workspace"
)

// toolset makes the tools of a session. If that has only options, an executor and a log, the
// tools have definitions and can't run.
type toolset struct {
	*Session
	reader workspace.View
}

// listFactories returns all tools, in the order in which models see them.
func (t toolset) listFactories() ([]tools.Factory, error) {
	all, err := file.Factories(file.Options{Reader: t.reader, Applier: t.exec, MarkPatch: t.patches.markPatch, Logger: t.log})
	if err != nil {
		return nil, err
	}
	commands, err := t.shellTools()
	if err != nil {
		return nil, err
	}
	checks, err := t.verifyTools()
	if err != nil {
		return nil, err
	}
	fetched, err := t.fetchTool()
	if err != nil {
		return nil, err
	}
	all = slices.Concat(all, commands, checks, []tools.Factory{fetched}, t.memoryTools(), t.workerTools(fetched))
	all = append(all, skill.New(skill.ToolOptions{Skills: t.skills, Known: func() []tools.Name { return t.tools.Names() }, Warn: t.events.recordWarning}))
	all = append(all, t.discoveryTools()...)
	for _, d := range t.opts.Declared {
		f, err := shell.NewDeclared(t.exec, d, t.shellOptions())
		if err != nil {
			return nil, err
		}
		all = append(all, f)
	}
	return append(all, t.opts.Tools...), nil
}

func (t toolset) shellOptions() shell.Options {
	return shell.Options{
		Timeout: t.opts.Resources.CommandTime, Grace: t.opts.Grace, Mount: t.opts.mountPoint(), HostRoot: t.opts.Workspace.Path, Network: t.opts.Egress.enabled(),
		Background: t.exec.Background(), View: t.reader,
	}
}

// shellTools returns shell and the tools for its commands.
func (t toolset) shellTools() ([]tools.Factory, error) {
	o := t.shellOptions()
	run, err := shell.New(t.exec, o)
	return []tools.Factory{run, shell.NewOutput(t.exec), shell.NewKill(o), shell.NewInput(o)}, err
}

func (t toolset) verifyTools() ([]tools.Factory, error) {
	o := verify.Options{View: t.reader, CommandTime: t.opts.Resources.CommandTime, Grace: t.opts.Grace}
	sh, err := verify.NewShell(checker{t.exec}, o)
	return []tools.Factory{verify.New(o), sh}, err
}

func (t toolset) fetchTool() (tools.Factory, error) {
	dir := ""
	if t.dir != "" {
		dir = filepath.Join(t.dir, fetchedDir)
	}
	return t.opts.Fetch.NewTool(t.opts.Version, dir, t.log, func(d fetch.Denial) error {
		return t.events.recordDenied(record.NetworkDenied{CallID: d.CallID, URL: d.URL, Host: d.Host, Addr: d.Addr, Reason: d.Reason, Redirect: d.Redirect})
	})
}

// workerTools returns the tools that ask models. The models may use the session's fetch, with
// its budget and breakers, and verify on texts.
func (t toolset) workerTools(fetched tools.Factory) []tools.Factory {
	o := t.opts.Workers
	return worker.NewTools(worker.AgentOptions{
		Profiles: o.Profiles, Record: t.events.recordWorker, Logger: t.log,
		Tools: worker.ToolOptions{
			Names: o.Tools, Factories: []tools.Factory{fetched, verify.New(verify.Options{})}, Allow: t.mayGiveWorkers,
			Policy: t.opts.Policy, Workspace: t.opts.Workspace.Path, CostCap: o.CostCap,
		},
	})
}

// mayGiveWorkers reports whether workers may use a tool. Nobody would read a decider's
// rulings on their calls.
func (t toolset) mayGiveWorkers(def tools.Definition) bool {
	return t.mayUse(def) && !t.opts.Decider.Covers(def)
}

func (t toolset) memoryTools() []tools.Factory {
	return memory.Factories(memory.Options{Store: t.opts.Memory, Redact: redact.New(t.opts.Secrets).Text, Warn: t.events.recordWarning})
}

// newDefiner returns a toolset for definitions alone.
func newDefiner(o ToolOptions, setup sandbox.Setup) toolset {
	opts := Options{ToolOptions: o, SandboxOptions: SandboxOptions{Setup: setup}, Workspace: &Workspace{Path: "/"}}
	return toolset{&Session{opts: opts, exec: &livesandbox.Executor{}, log: zap.NewNop()}, &livesandbox.View{}}
}

// Definitions returns the definitions of the built-in tools, in the order in which models see
// them.
func Definitions() ([]tools.Definition, error) { return DefinitionsOf(ToolOptions{}, 0) }

// DefinitionsOf returns the definitions of the tools of a session with these options and this
// time limit for commands; zero is the default. Tools that are off are included, with
// EnabledByDefault false.
func DefinitionsOf(o ToolOptions, commandTime time.Duration) ([]tools.Definition, error) {
	all, err := newDefiner(o, sandbox.Setup{Resources: limits.Resources{CommandTime: commandTime}}).listFactories()
	if err != nil {
		return nil, fmt.Errorf("list tools: %w", err)
	}
	defs := make([]tools.Definition, 0, len(all))
	for _, f := range all {
		def, err := tools.Inspect(f)
		if err != nil {
			return nil, fmt.Errorf("list tools: %w", err)
		}
		defs = append(defs, def)
	}
	return defs, nil
}

// fetchedDir keeps a session's responses by their SHA-256.
const fetchedDir = "fetched"

// FetchOptions configures what a session may fetch. The zero value allows nothing.
type FetchOptions struct {
	// Allow lists what may be fetched; if it is empty, the tool is off.
	Allow []rule.Rule
	// Deny wins over Allow.
	Deny []rule.Rule
	// Private are hosts that may have private addresses.
	Private map[string][]netip.Prefix
	// MaxBytes bounds one response and Timeout one fetch; zero means the tool's defaults.
	MaxBytes int64
	Timeout  time.Duration
	// Proxy makes the connections; nil is none. The environment's proxy is never used.
	Proxy *url.URL
	// Egress bounds all fetches together; the zero value means [limits.DefaultEgressBudget].
	Egress limits.EgressBudget
}

// NewTool returns a fetch tool with its own budget and breakers. It keeps responses in dir,
// unless that is "", and reports refused connections to denied.
func (o FetchOptions) NewTool(version, dir string, log *zap.Logger, denied func(fetch.Denial) error) (tools.Factory, error) {
	egress, err := limits.NewEgress(cmp.Or(o.Egress, limits.DefaultEgressBudget()))
	if err != nil {
		return nil, err
	}
	agent := "Caisson"
	if version != "" {
		agent += "/" + version
	}
	return fetch.New(fetch.Options{
		Allow: o.Allow, Deny: o.Deny, Private: o.Private, Egress: egress, Hosts: &limits.Breakers{Name: limits.BreakerFetchHost}, MaxBytes: o.MaxBytes, Timeout: o.Timeout, Proxy: o.Proxy,
		Dir: dir, Agent: agent, Logger: log, Denied: denied,
	})
}

type checker struct{ exec *livesandbox.Executor }

func (c checker) RunCheck(ctx context.Context, cmd verify.Command) (verify.Ended, error) {
	r, err := c.exec.Run(ctx, shell.Command{Script: cmd.Script, Command: sandbox.Command{Timeout: cmd.Timeout, Stdout: io.Discard, Stderr: io.Discard}})
	if err != nil {
		return verify.Ended{}, err
	}
	out := r.Stdout
	ended := verify.Ended{
		Exit: r.Exit, Stdout: string(out.Head),
		Cut: out.Total > int64(len(out.Head)+len(out.Tail)),
	}
	if ended.Cut {
		ended.Stdout += "\n"
	}
	ended.Stdout += string(out.Tail)
	return ended, nil
}
