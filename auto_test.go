package caisson

import (
	"context"
	"errors"
	"strings"
	"testing"

	"github.com/caisson-run/caisson/sandbox"
)

// refusing is a backend that makes no sandbox.
type refusing struct {
	sandbox.Backend // nil: nothing else is called
	name            string
	err             error
	info            sandbox.Info
	unusable        error
}

func (b *refusing) Name() string { return b.name }

func (b *refusing) Check(context.Context) (sandbox.Info, error) {
	b.info.Local = true
	return b.info, b.unusable
}

func (b *refusing) Create(context.Context, sandbox.Spec) (sandbox.Sandbox, error) { return nil, b.err }

// TestAutoFallsBack: auto uses another backend for a sandbox that docker can't provide,
// and reports it. A named backend is never replaced.
func TestAutoFallsBack(t *testing.T) {
	for name, tt := range map[string]struct {
		backend   string
		allowed   []string
		incapable bool // error
	}{
		"auto":            {backend: "auto"},
		"docker":          {backend: "docker", incapable: true},
		"auto, alone":     {backend: "auto", allowed: []string{"docker"}, incapable: true},
		"auto, with runc": {backend: "auto", allowed: []string{"docker", "runc"}},
	} {
		t.Run(name, func(t *testing.T) {
			h, err := NewHost(HostOptions{
				StateDir: t.TempDir(), Environ: []string{"HOME=" + t.TempDir()}, Backends: tt.allowed, Guest: "/bin/sh", Runsc: "/bin/sh", Runc: "/bin/sh",
				NewBackend: func(b BackendSettings) (sandbox.Backend, error) {
					if b.Name == "docker" { // which can't run commands as root
						return &refusing{name: b.Name, err: &sandbox.IncapableError{Request: "user root", Reason: "it is " + b.Name, Hint: "use another"}}, nil
					}
					return &refusing{name: b.Name, err: sandbox.ErrInvalid, info: sandbox.Info{Isolation: sandbox.IsolationProcess}}, nil
				},
			})
			if err != nil {
				t.Fatal(err)
			}
			told := ""
			b, _, err := h.Choose(t.Context(), tt.backend, func(text string) { told = text })
			if err != nil {
				t.Fatal(err)
			}
			_, err = b.Create(t.Context(), sandbox.Spec{Setup: sandbox.Setup{User: sandbox.UserRoot}})
			if got := errors.As(err, new(*sandbox.IncapableError)); got != tt.incapable || (told != "") == tt.incapable {
				t.Errorf("error %v, told %q", err, told)
			}
			if told != "" && !strings.Contains(told, "without namespaces") {
				t.Errorf("told %q, not that there are no namespaces", told)
			}
		})
	}
}

// TestChoiceOfIsolation: auto takes the strongest isolation that works, and the reason
// for the choice says so if there are no namespaces. Isolation process means gvisor.
func TestChoiceOfIsolation(t *testing.T) {
	const none, noEngine = "this process may not make any (operation not permitted)", "no local Docker engine can be used: none runs"
	for name, tt := range map[string]struct {
		backend   string
		isolation sandbox.Isolation
		engine    bool // a Docker engine runs
		confined  bool // this process may make no namespaces
		want, why string
	}{
		"auto, engine":         {backend: "auto", engine: true, confined: true, want: "docker", why: "a local Docker engine answers"},
		"auto":                 {backend: "auto", want: "gvisor", why: noEngine},
		"auto, confined":       {backend: "auto", confined: true, want: "gvisor", why: "without namespaces, because " + none + "; " + noEngine},
		"auto, process":        {backend: "auto", isolation: "process", engine: true, want: "gvisor", why: "without namespaces; docker has no isolation process"},
		"auto, namespaces":     {backend: "auto", isolation: "namespaces", engine: true, want: "docker", why: "a local Docker engine answers"},
		"gvisor":               {backend: "gvisor", want: "gvisor", why: "asked for"},
		"gvisor, confined":     {backend: "gvisor", confined: true, want: "gvisor", why: "asked for; without namespaces, because " + none},
		"gvisor, process":      {backend: "gvisor", isolation: "process", want: "gvisor", why: "asked for; without namespaces"},
		"docker, process":      {backend: "docker", isolation: "process", engine: true},
		"runc, process":        {backend: "runc", isolation: "process"},
		"runc, namespaces":     {backend: "runc", isolation: "namespaces", want: "runc", why: "asked for"},
		"confined, namespaces": {backend: "auto", isolation: "namespaces", confined: true},
	} {
		t.Run(name, func(t *testing.T) {
			h, err := NewHost(HostOptions{
				StateDir: t.TempDir(), Environ: []string{"HOME=" + t.TempDir()}, Isolation: tt.isolation, Guest: "/bin/sh", Runsc: "/bin/sh", Runc: "/bin/sh",
				NewBackend: func(b BackendSettings) (sandbox.Backend, error) {
					out := &refusing{name: b.Name}
					switch {
					case b.Name == "docker" && !tt.engine:
						out.unusable = errors.New("none runs")
					case b.Name == "gvisor" && b.Isolation == "" && tt.confined:
						out.info = sandbox.Info{Isolation: sandbox.IsolationProcess, NoNamespaces: none}
					case b.Name == "gvisor" && b.Isolation == sandbox.IsolationProcess:
						out.info.Isolation = sandbox.IsolationProcess
					case b.Name != "docker" && tt.confined:
						out.unusable = sandbox.ErrNoNamespaces
					}
					return out, nil
				},
			})
			if err != nil {
				t.Fatal(err)
			}
			_, choice, err := h.Choose(t.Context(), tt.backend, nil)
			switch {
			case tt.want != "":
				if err != nil || choice.Chosen != tt.want || choice.Why != tt.why {
					t.Errorf("%v, %+v, want %s: %s", err, choice, tt.want, tt.why)
				}
			case tt.confined:
				if !errors.Is(err, sandbox.ErrNoNamespaces) {
					t.Errorf("error %v", err)
				}
			default:
				if e, ok := errors.AsType[*sandbox.IncapableError](err); !ok || e.Hint == "" {
					t.Errorf("error %v, want an IncapableError with a hint", err)
				}
				if _, err := h.Backend(tt.backend); err != nil { // to remove what it left
					t.Error(err)
				}
			}
		})
	}
	if _, err := NewHost(HostOptions{StateDir: t.TempDir(), Isolation: "vm"}); !errors.Is(err, sandbox.ErrInvalid) {
		t.Errorf("an unknown isolation: %v", err)
	}
}

// TestSweepWithoutEngine: an absent engine leaves nothing to sweep, unless a session of
// the state directory has noted something there.
func TestSweepWithoutEngine(t *testing.T) {
	state := t.TempDir()
	h, err := NewHost(HostOptions{StateDir: state, Environ: []string{"HOME=" + t.TempDir()}, Backends: []string{"docker"}, Guest: "/bin/sh", DockerHost: "unix:///nonexistent"})
	if err != nil {
		t.Fatal(err)
	}
	if _, err := h.Backend("docker"); err != nil {
		t.Fatal(err)
	}
	if left, err := h.Sweep(t.Context()); err != nil || len(left) > 0 {
		t.Errorf("%v, %v", left, err)
	}
}
