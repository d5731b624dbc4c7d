package service

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"go.uber.org/goleak"

	"github.com/caisson-run/caisson/images"
	"github.com/caisson-run/caisson/sandbox"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

type fakeStarter struct {
	program func(ctx context.Context, cmd sandbox.Command) sandbox.ExitStatus
	test    func(ctx context.Context, number int, cmd sandbox.Command) sandbox.Exit

	mu    sync.Mutex
	began time.Time
	tests []time.Duration // when each test began
	run   []sandbox.Command
}

type fakeProcess struct {
	done chan struct{}
	exit sandbox.Exit
}

func (p *fakeProcess) Wait() (sandbox.Exit, error) {
	<-p.done
	return p.exit, nil
}

func (f *fakeStarter) start(ctx context.Context, cmd sandbox.Command) (sandbox.Process, error) {
	if err := context.Cause(ctx); err != nil {
		return nil, err
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	f.run = append(f.run, cmd)
	p := &fakeProcess{done: make(chan struct{})}
	number := len(f.tests)
	isTest := slices.Contains(cmd.Argv, "test")
	if isTest {
		f.tests = append(f.tests, time.Since(f.began))
	} else {
		f.began = time.Now()
	}
	go func() {
		defer close(p.done)
		if !isTest {
			p.exit.Status = f.program(ctx, cmd)
			return
		}
		limited, cancel := context.WithTimeout(ctx, cmd.Timeout)
		defer cancel()
		p.exit = f.test(limited, number, cmd)
		p.exit.Status.TimedOut = ctx.Err() == nil && limited.Err() != nil
	}()
	return p, nil
}

// runUntilEnded is a program that writes until it is ended.
func runUntilEnded(ctx context.Context, cmd sandbox.Command) sandbox.ExitStatus {
	fmt.Fprintln(cmd.Stdout, "serving")
	<-ctx.Done()
	return sandbox.ExitStatus{Code: -1, Signal: 15, Cancelled: true}
}

func failTest(context.Context, int, sandbox.Command) sandbox.Exit {
	return sandbox.Exit{Status: sandbox.ExitStatus{Code: 1}}
}

func startWith(t *testing.T, f *fakeStarter, spec sandbox.Service, config images.Config) (*Service, error) {
	t.Helper()
	plan, err := NewPlan(spec, config, "/workspace")
	if err != nil {
		t.Fatal(err)
	}
	life, cancel := context.WithCancel(context.Background())
	t.Cleanup(cancel)
	return Start(t.Context(), plan, Options{Start: f.start, Life: life, Identities: 16})
}

// Failures count in a row, from the start period or the first interval on.
func TestFailuresCountAsInDocker(t *testing.T) {
	const unit = 200 * time.Millisecond
	for name, tt := range map[string]struct {
		check     images.HealthCheck
		succeed   int           // the test that succeeds, or -1
		uncounted time.Duration // failures before do not count
	}{
		"from the first interval on": {images.HealthCheck{Interval: unit, Retries: 2}, -1, unit},
		"from the start period on":   {images.HealthCheck{Interval: unit, StartPeriod: 3 * unit, StartInterval: unit / 2, Retries: 1}, -1, 3 * unit},
		"sooner than Docker":         {images.HealthCheck{Interval: time.Hour, Retries: 1}, 1, 0},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			f := &fakeStarter{program: runUntilEnded, test: func(ctx context.Context, number int, cmd sandbox.Command) sandbox.Exit {
				if number == tt.succeed {
					return sandbox.Exit{}
				}
				fmt.Fprintln(cmd.Stderr, "no answer")
				return failTest(ctx, number, cmd)
			}}
			tt.check.Test = []string{"CMD", "test"}
			s, err := startWith(t, f, sandbox.Service{Args: []string{"serve"}, HealthCheck: &tt.check}, images.Config{})
			if tt.succeed >= 0 {
				if err != nil || s.Attestation().Tests != tt.succeed+1 || !s.Attestation().Healthy || s.Attestation().Identity != sandbox.ServiceIdentity {
					t.Errorf("%+v, %v", s.Attestation(), err)
				}
				return
			}
			failure, ok := errors.AsType[*sandbox.ServiceError](err)
			if !ok || failure.Output != "serving\n" || failure.TestOutput != "no answer\n" {
				t.Fatalf("error %+v", err)
			}
			counted := 0
			for _, at := range f.tests {
				if at >= tt.uncounted-unit/8 { // the clock of the tests began a little later
					counted++
				}
			}
			if counted != tt.check.Retries || len(f.tests) == counted {
				t.Errorf("%d of the tests at %v counted", counted, f.tests)
			}
		})
	}
}

// Whatever an image asks for, the start ends in time and keeps little of the
// output.
func TestHostileHealthChecks(t *testing.T) {
	flood := bytes.Repeat([]byte("x"), 1<<20)
	hang := func(ctx context.Context, _ int, _ sandbox.Command) sandbox.Exit {
		<-ctx.Done()
		return sandbox.Exit{Status: sandbox.ExitStatus{Code: -1, Signal: 9}}
	}
	for name, tt := range map[string]struct {
		check images.HealthCheck
		test  func(context.Context, int, sandbox.Command) sandbox.Exit
		want  string
	}{
		"no pause":       {images.HealthCheck{Interval: 1, StartInterval: 1, StartPeriod: 1 << 62}, failTest, "within 700ms"},
		"290 years":      {images.HealthCheck{Interval: 1<<63 - 1, StartInterval: 1<<63 - 1, StartPeriod: 1<<63 - 1, Timeout: 1<<63 - 1}, failTest, "within 700ms"},
		"many retries":   {images.HealthCheck{Interval: 1, Retries: 1<<63 - 1}, failTest, "within 700ms"},
		"no end":         {images.HealthCheck{Interval: 1, Timeout: 1<<63 - 1}, hang, "within 700ms"},
		"no end in time": {images.HealthCheck{Interval: 1, Timeout: 50 * time.Millisecond, Retries: 1}, hang, "timed out"},
		"what is left": {images.HealthCheck{}, func(context.Context, int, sandbox.Command) sandbox.Exit {
			return sandbox.Exit{Kill: sandbox.KillReport{Left: 2}}
		}, "could not be killed"},
		"a flood of output": {images.HealthCheck{Interval: 1, Retries: 1}, func(ctx context.Context, n int, cmd sandbox.Command) sandbox.Exit {
			_, _ = cmd.Stdout.Write(flood)
			return failTest(ctx, n, cmd)
		}, "bytes left out"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			f := &fakeStarter{program: runUntilEnded, test: tt.test}
			tt.check.Test = []string{"CMD", "test"}
			begun := time.Now()
			_, err := startWith(t, f, sandbox.Service{Args: []string{"serve"}, StartTime: 700 * time.Millisecond}, images.Config{HealthCheck: &tt.check})
			failure, ok := errors.AsType[*sandbox.ServiceError](err)
			if !ok || !errors.Is(err, sandbox.ErrUnhealthy) || !strings.Contains(failure.Error()+failure.TestOutput, tt.want) {
				t.Errorf("error %v, want %q", err, tt.want)
			}
			if took := time.Since(begun); took > 10*time.Second || len(f.tests) > 10 || len(failure.TestOutput) > 3*keptBytes {
				t.Errorf("%d tests in %s, %d bytes of output", len(f.tests), took, len(failure.TestOutput))
			}
		})
	}
}

// A start ends if the service ends, the caller cancels or a bound is exceeded,
// each with its cause.
func TestEndsOfAStart(t *testing.T) {
	check := &images.HealthCheck{Test: []string{"CMD-SHELL", "test"}}
	end := func(context.Context, sandbox.Command) sandbox.ExitStatus { return sandbox.ExitStatus{Code: 4} }
	pass := func(context.Context, int, sandbox.Command) sandbox.Exit { return sandbox.Exit{} }
	t.Run("it ends", func(t *testing.T) {
		for _, h := range []*images.HealthCheck{check, nil, {Test: []string{"NONE"}}} {
			_, err := startWith(t, &fakeStarter{program: end, test: failTest}, sandbox.Service{Args: []string{"serve"}, HealthCheck: h}, images.Config{})
			if !errors.Is(err, sandbox.ErrUnhealthy) || !strings.Contains(err.Error(), "ended with exit code 4") {
				t.Errorf("error %v", err)
			}
		}
	})
	t.Run("it is cancelled", func(t *testing.T) {
		plan, err := NewPlan(sandbox.Service{Args: []string{"serve"}, HealthCheck: check}, images.Config{}, "/workspace")
		if err != nil {
			t.Fatal(err)
		}
		life, stop := context.WithCancel(t.Context())
		defer stop()
		ctx, cancel := context.WithCancelCause(t.Context())
		cause := errors.New("the user")
		f := &fakeStarter{program: runUntilEnded, test: func(ctx context.Context, n int, cmd sandbox.Command) sandbox.Exit {
			cancel(cause)
			return failTest(ctx, n, cmd)
		}}
		if _, err := Start(ctx, plan, Options{Start: f.start, Life: life}); !errors.Is(err, cause) || errors.Is(err, sandbox.ErrUnhealthy) {
			t.Errorf("error %v", err)
		}
	})
	t.Run("its life ends", func(t *testing.T) {
		plan, err := NewPlan(sandbox.Service{Args: []string{"serve"}}, images.Config{HealthCheck: check}, "/workspace")
		if err != nil {
			t.Fatal(err)
		}
		life, stop := context.WithCancelCause(context.Background())
		cause := errors.New("the disk is full")
		f := &fakeStarter{program: runUntilEnded, test: func(ctx context.Context, _ int, _ sandbox.Command) sandbox.Exit {
			stop(cause)
			<-ctx.Done()
			return sandbox.Exit{Status: sandbox.ExitStatus{Cancelled: true}}
		}}
		if _, err := Start(t.Context(), plan, Options{Start: f.start, Life: life}); !errors.Is(err, cause) || !errors.Is(err, sandbox.ErrUnhealthy) {
			t.Errorf("error %v", err)
		}
	})
	t.Run("after it", func(t *testing.T) {
		ended := make(chan struct{})
		f := &fakeStarter{test: pass, program: func(_ context.Context, cmd sandbox.Command) sandbox.ExitStatus {
			_, _ = cmd.Stderr.Write([]byte("crash"))
			<-ended
			return sandbox.ExitStatus{Code: 4}
		}}
		s, err := startWith(t, f, sandbox.Service{Args: []string{"serve"}, HealthCheck: check}, images.Config{})
		if err != nil {
			t.Fatal(err)
		}
		close(ended)
		<-s.Done()
		if exit, err := s.Wait(); err != nil || exit.Status.Code != 4 || s.Output() != "crash" {
			t.Errorf("%+v, %v, %q", exit, err, s.Output())
		}
	})
}

func TestPlans(t *testing.T) {
	image := images.Config{
		Entrypoint: []string{"entry", "-x"}, Cmd: []string{"cmd"}, WorkingDir: "/srv/app", Shell: []string{"/bin/bash", "-c"},
		HealthCheck: &images.HealthCheck{Test: []string{"CMD-SHELL", "test"}},
	}
	entered := []string{"/bin/sh", "-c", `cd "$0" && exec "$@"`, "/srv/app"}
	for name, tt := range map[string]struct {
		spec     sandbox.Service
		config   images.Config
		argv     []string
		test     []string
		dir      string
		identity int
	}{
		"the image's":           {sandbox.Service{}, image, append(slices.Clone(entered), "entry", "-x", "cmd"), append(slices.Clone(entered), "/bin/bash", "-c", "test"), "", 1},
		"the user's":            {sandbox.Service{Args: []string{"mine"}, AsAgent: true}, images.Config{}, []string{"mine"}, nil, "", 0},
		"the user's test":       {sandbox.Service{HealthCheck: &images.HealthCheck{Test: []string{"CMD", "test", "it"}}, Dir: "/workspace/sub"}, image, []string{"entry", "-x", "cmd"}, []string{"test", "it"}, "/workspace/sub", 1},
		"no test":               {sandbox.Service{HealthCheck: &images.HealthCheck{Test: []string{"NONE"}}, Dir: "/workspace/"}, image, []string{"entry", "-x", "cmd"}, nil, "/workspace", 1},
		"a relative WORKDIR":    {sandbox.Service{}, images.Config{Cmd: []string{"cmd"}, WorkingDir: "../etc"}, []string{"/bin/sh", "-c", `cd "$0" && exec "$@"`, "/etc", "cmd"}, nil, "", 1},
		"beside the workspace":  {sandbox.Service{Dir: "/workspace-2"}, images.Config{Cmd: []string{"cmd"}}, []string{"/bin/sh", "-c", `cd "$0" && exec "$@"`, "/workspace-2", "cmd"}, nil, "", 1},
		"a thousand arguments":  {sandbox.Service{Args: slices.Repeat([]string{"a"}, 1000)}, images.Config{}, slices.Repeat([]string{"a"}, 1000), nil, "", 1},
		"the workspace's mount": {sandbox.Service{}, images.Config{Cmd: []string{"cmd"}, WorkingDir: "/workspace"}, []string{"cmd"}, nil, "/workspace", 1},
	} {
		t.Run(name, func(t *testing.T) {
			f := &fakeStarter{program: runUntilEnded, test: func(context.Context, int, sandbox.Command) sandbox.Exit { return sandbox.Exit{} }}
			s, err := startWith(t, f, tt.spec, tt.config)
			if err != nil {
				t.Fatal(err)
			}
			if got := f.run[0]; !slices.Equal(got.Argv, tt.argv) || got.Dir != tt.dir || got.Identity != tt.identity {
				t.Errorf("service %q in %q as %d", got.Argv, got.Dir, got.Identity)
			}
			if len(f.run) > 1 != (tt.test != nil) || tt.test != nil && (!slices.Equal(f.run[1].Argv, tt.test) || f.run[1].Identity != tt.identity || f.run[1].Dir != tt.dir) {
				t.Errorf("test %+v", f.run[1:])
			}
			if at := s.Attestation(); at.Healthy != (tt.test != nil) || at.Identity != tt.identity {
				t.Errorf("attested %+v", at)
			}
		})
	}
	for name, tt := range map[string]struct {
		spec   sandbox.Service
		config images.Config
	}{
		"no program":         {sandbox.Service{}, images.Config{}},
		"a negative time":    {sandbox.Service{}, images.Config{Cmd: []string{"a"}, HealthCheck: &images.HealthCheck{Test: []string{"CMD", "test"}, Timeout: -1}}},
		"negative retries":   {sandbox.Service{Args: []string{"a"}, HealthCheck: &images.HealthCheck{Test: []string{"CMD", "test"}, Retries: -1}}, images.Config{}},
		"an unknown test":    {sandbox.Service{}, images.Config{Cmd: []string{"a"}, HealthCheck: &images.HealthCheck{Test: []string{"EVAL", "test"}}}},
		"a relative dir":     {sandbox.Service{Args: []string{"a"}, Dir: "x"}, images.Config{}},
		"a long start":       {sandbox.Service{Args: []string{"a"}, StartTime: 48 * time.Hour}, images.Config{}},
		"too many arguments": {sandbox.Service{Args: slices.Repeat([]string{"a"}, 5000)}, images.Config{}},
		"a program unnamed":  {sandbox.Service{Args: []string{""}}, images.Config{}},
	} {
		if _, err := NewPlan(tt.spec, tt.config, "/workspace"); !errors.Is(err, sandbox.ErrInvalid) {
			t.Errorf("%s: error %v, want ErrInvalid", name, err)
		}
	}
}

// The first and the last bytes are kept, however they come.
func TestOutput(t *testing.T) {
	var o output
	for i := range 100_000 {
		fmt.Fprintln(&o, i)
	}
	o.addEnd(1000, []byte("the very end"))
	text := o.String()
	if !strings.HasPrefix(text, "0\n1\n") || !strings.HasSuffix(text, "the very end") || len(text) > 2*keptBytes+100 || !strings.Contains(text, "bytes left out]") {
		t.Errorf("%d bytes: %.50q", len(text), text)
	}
	p := Plan{argv: []string{"a\x1b[2J" + strings.Repeat("x", 1000)}}
	if name := p.program(); strings.Contains(name, "\x1b") || len(name) > maxProgram+10 {
		t.Errorf("program %q", name)
	}
}
