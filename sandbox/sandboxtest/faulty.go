package sandboxtest

import (
	"context"
	"errors"
	"io"
	"io/fs"
	"os"
	"path"
	"path/filepath"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/caisson-run/caisson/sandbox"
	"github.com/caisson-run/caisson/sandbox/overlay"
	"github.com/caisson-run/caisson/tools/workspace"
)

// fault is one deliberate defect, added to a correct backend. Each function
// changes one thing that passes between the suite and the backend, unless it is
// nil.
type fault struct {
	name   string
	checks []string
	// copies marks faults that only a backend with copy mode can have.
	copies bool
	target func(t *Target)
	// spec and command change the requests to Create and Start.
	spec        func(s *sandbox.Spec)
	command     func(c *sandbox.Command)
	unstoppable bool
	start       func(err error) error
	// answers change the standard output of commands, by the probe's verb or
	// another program's name.
	answers map[string]func(right string) string
	end     func(p *faultyProcess, x *sandbox.Exit, err *error)
	// id and attest change what a sandbox reports.
	id     func(right string) string
	attest func(a *sandbox.Attestation)
	apply  func(ctx context.Context, s *faultySandbox, op workspace.Op) (workspace.Change, error)
	// collected changes an entry in the upper layer after Collect.
	collected func(path string, d fs.DirEntry) error
	destroy   func(ctx context.Context, s *faultySandbox) error
	handler   func(s *faultySandbox, h sandbox.EgressHandler) sandbox.EgressHandler
	sweep     func(b *faulty) []sandbox.Orphan
}

// foundWithin is how long a check may take to fail. Waiting longer would find
// nothing.
const foundWithin = 2 * time.Minute

// RunFaults shows that the checks of [Run] can fail. It adds one fault after
// another to the backend, which must pass without it, and requires that the
// fault's checks find it. With names of checks, it adds only the faults that
// one of them must find. In a sample, it adds an eighth of the faults and runs one check for
// each.
func RunFaults(t *testing.T, target Target, only ...string) {
	t.Helper()
	if os.Geteuid() != 0 && !target.Contained {
		t.Skip("needs root: faults are shown where no protection is lost")
	}
	if target.Probe == "" {
		target.Probe = BuildProbe(t)
	}
	target.Brief, target.FloodBytes = true, 4<<20
	for _, f := range faults() {
		if len(only) > 0 {
			f.checks = slices.DeleteFunc(f.checks, func(name string) bool { return !slices.Contains(only, name) })
		}
		if len(f.checks) == 0 || f.copies && !target.Copies || len(only) == 0 && !isSampled(f.name, 8) {
			continue
		}
		t.Run(f.name, func(t *testing.T) {
			t.Parallel()
			runFault(t, target, f)
		})
	}
}

func runFault(t *testing.T, target Target, f fault) {
	b := &faulty{Backend: target.Backend, fault: f}
	target.Backend = b
	kill, pause, process := target.Kill, target.Pause, target.HostProcess
	target.Kill = func(ctx context.Context, sb sandbox.Sandbox) error { return kill(ctx, withoutFault(sb)) }
	target.HostProcess = func(ctx context.Context, sb sandbox.Sandbox) (int, error) { return process(ctx, withoutFault(sb)) }
	if pause != nil {
		target.Pause = func(ctx context.Context, sb sandbox.Sandbox) error { return pause(ctx, withoutFault(sb)) }
	}
	if f.target != nil {
		f.target(&target)
	}
	shared := newEnv(target, t.TempDir())
	which := Sampled(t, f.checks...)
	checks := slices.DeleteFunc(allChecks(), func(c check) bool { return !slices.Contains(which, c.name) })
	if slices.ContainsFunc(checks, func(c check) bool { return !c.fresh }) {
		if err := shared.start(t.Context(), nil); err != nil {
			t.Fatalf("the fault prevents the start: %v", err)
		}
		defer shared.dir.Close()
	}
	defer b.destroyAll(t)
	found := false
	var skipped error
	for _, c := range checks {
		ctx, cancel := context.WithTimeout(t.Context(), foundWithin)
		err := runCheck(ctx, c, shared, t.TempDir)
		late := ctx.Err() != nil
		cancel()
		switch {
		case errors.Is(err, errSkip):
			skipped = err
		case err == nil:
			t.Errorf("check %q passes", c.name)
		case late:
			t.Errorf("check %q ran out of time: %v", c.name, err)
		default:
			t.Logf("found by %q: %v", c.name, err)
			found = true
		}
	}
	if skipped != nil && !found && !t.Failed() {
		t.Skip(skipped)
	}
}

type faulty struct {
	sandbox.Backend
	fault fault

	mu   sync.Mutex
	made []*faultySandbox
}

func (b *faulty) Create(ctx context.Context, spec sandbox.Spec) (sandbox.Sandbox, error) {
	if b.fault.unstoppable {
		ctx = context.WithoutCancel(ctx)
	}
	if b.fault.spec != nil {
		b.fault.spec(&spec)
	}
	sb, err := b.Backend.Create(ctx, spec)
	if err != nil {
		return nil, err
	}
	s := &faultySandbox{Sandbox: sb, fault: b.fault, spec: spec}
	b.mu.Lock()
	defer b.mu.Unlock()
	b.made = append(b.made, s)
	return s, nil
}

func (b *faulty) Sweep(ctx context.Context) ([]sandbox.Orphan, error) {
	list, err := b.Backend.Sweep(ctx)
	if b.fault.sweep != nil {
		list = append(list, b.fault.sweep(b)...)
	}
	return list, err
}

func (b *faulty) destroyAll(t *testing.T) {
	b.mu.Lock()
	defer b.mu.Unlock()
	for _, s := range b.made {
		if err := s.Sandbox.Destroy(context.WithoutCancel(t.Context())); err != nil {
			t.Error(err)
		}
	}
}

type faultySandbox struct {
	sandbox.Sandbox
	fault fault
	spec  sandbox.Spec
}

func withoutFault(sb sandbox.Sandbox) sandbox.Sandbox { return sb.(*faultySandbox).Sandbox }

func (s *faultySandbox) ID() string {
	if s.fault.id != nil {
		return s.fault.id(s.Sandbox.ID())
	}
	return s.Sandbox.ID()
}

func (s *faultySandbox) Attestation() sandbox.Attestation {
	a := s.Sandbox.Attestation()
	if s.fault.attest != nil {
		s.fault.attest(&a)
	}
	return a
}

func (s *faultySandbox) Apply(ctx context.Context, op workspace.Op) (workspace.Change, error) {
	if s.fault.apply != nil {
		return s.fault.apply(ctx, s, op)
	}
	return s.Sandbox.Apply(ctx, op)
}

func (s *faultySandbox) Destroy(ctx context.Context) error {
	if s.fault.destroy != nil {
		return s.fault.destroy(ctx, s)
	}
	return s.Sandbox.Destroy(ctx)
}

func (s *faultySandbox) Collect(ctx context.Context) error {
	if err := s.Sandbox.Collect(ctx); err != nil || s.fault.collected == nil {
		return err
	}
	upper := filepath.Join(s.spec.Workspace.Layers, overlay.UpperDir)
	return filepath.WalkDir(upper, func(path string, d fs.DirEntry, err error) error {
		if err != nil || path == upper {
			return err
		}
		return s.fault.collected(path, d)
	})
}

func (s *faultySandbox) Serve(h sandbox.EgressHandler) {
	if s.fault.handler != nil {
		h = s.fault.handler(s, h)
	}
	s.Sandbox.(sandbox.EgressServer).Serve(h)
}

func (s *faultySandbox) Start(ctx context.Context, cmd sandbox.Command) (sandbox.Process, error) {
	p := &faultyProcess{fault: s.fault, argv: cmd.Argv, to: cmd.Stdout}
	if s.fault.command != nil {
		s.fault.command(&cmd)
	}
	if p.answer = s.fault.answers[p.verb()]; p.answer != nil {
		cmd.Stdout = &p.out
	}
	var err error
	if p.Process, err = s.Sandbox.Start(ctx, cmd); err != nil {
		if s.fault.start != nil {
			err = s.fault.start(err)
		}
		return nil, err
	}
	return p, nil
}

type faultyProcess struct {
	sandbox.Process
	fault  fault
	argv   []string
	answer func(right string) string // nil passes the output on at once
	out    safeBuffer
	to     io.Writer
	waited int
}

// verb returns the probe's verb, or another program's name.
func (p *faultyProcess) verb() string {
	switch {
	case len(p.argv) == 0:
		return ""
	case len(p.argv) > 1 && path.Base(p.argv[0]) == probeName:
		return p.argv[1]
	}
	return path.Base(p.argv[0])
}

func (p *faultyProcess) Wait() (sandbox.Exit, error) {
	exit, err := p.Process.Wait()
	p.waited++
	if p.waited == 1 && p.answer != nil {
		_, _ = io.WriteString(p.to, p.answer(p.out.String()))
	}
	if p.fault.end != nil {
		p.fault.end(p, &exit, &err)
	}
	return exit, err
}
