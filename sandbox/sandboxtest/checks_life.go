package sandboxtest

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/caisson-run/caisson/images"
	"github.com/caisson-run/caisson/limits"
	"github.com/caisson-run/caisson/sandbox"
)

func lifeChecks() []check {
	return []check{
		{name: "a running sandbox is running", run: checkRunning},
		{name: "bad specs are refused and leave nothing", run: checkBadSpecs},
		{name: "a cancelled start leaves nothing", run: checkCancelledCreate},
		{name: "destroy is idempotent and stops everything", fresh: true, run: checkDestroy},
		{name: "destroy during commands", fresh: true, run: checkDestroyBusy},
		{name: "a killed container is lost, never a result", fresh: true, run: checkKilled},
		{name: "sweep spares the living", run: checkSweep},
		{name: "a service runs beside commands", run: checkService},
		{name: "a service that is not healthy ends the start", run: checkUnhealthyService},
	}
}

func checkRunning(_ context.Context, e *env) error {
	if s := e.sb.State(); s != sandbox.StateRunning {
		return fmt.Errorf("state %s", s)
	}
	if e.sb.ID() == "" || e.sb.Err() != nil {
		return errorf("id %q err %w", e.sb.ID(), e.sb.Err())
	}
	select {
	case <-e.sb.Done():
		return errors.New("done")
	default:
		return nil
	}
}

func checkBadSpecs(ctx context.Context, e *env) error {
	missing := images.Reference{Scheme: images.SchemeRootFS, Value: "/no/such/rootfs"}
	for name, change := range map[string]func(*sandbox.Spec){
		"no session":       func(s *sandbox.Spec) { s.Session = "" },
		"session of dots":  func(s *sandbox.Spec) { s.Session = "../../x" },
		"no workspace":     func(s *sandbox.Spec) { s.Workspace.Dir = nil },
		"zero resources":   func(s *sandbox.Spec) { s.Resources = limits.Resources{} },
		"no image":         func(s *sandbox.Spec) { s.Image = images.Reference{} },
		"missing rootfs":   func(s *sandbox.Spec) { s.Image = missing },
		"unknown git mode": func(s *sandbox.Spec) { s.Git = "rw" },
		"unknown user":     func(s *sandbox.Spec) { s.User = "wheel" },
		"target above":     func(s *sandbox.Spec) { s.Workspace.Target = "/proc/../etc" },
		"tmp as target":    func(s *sandbox.Spec) { s.Workspace.Target = "/tmp/app" },
		"loader variable":  func(s *sandbox.Spec) { s.Env = []string{"LD_PRELOAD=/workspace/x.so"} },
		"no service":       func(s *sandbox.Spec) { s.Service = &sandbox.Service{} },
		"bad health check": func(s *sandbox.Spec) {
			s.Service = &sandbox.Service{Args: probeArgv("sleep"), HealthCheck: &images.HealthCheck{Test: []string{"CMD", "x"}, Interval: -1}}
		},
	} {
		other := newEnv(e.target, e.base+"/bad-"+name[:3])
		spec, err := other.newSpec(nil)
		if err != nil {
			return err
		}
		change(&spec)
		sb, err := e.target.Backend.Create(ctx, spec)
		if err == nil {
			return errors.Join(fmt.Errorf("%s: no error", name), sb.Destroy(ctx), other.dir.Close())
		}
		_ = other.dir.Close()
		want := sandbox.ErrInvalid
		if name == "missing rootfs" {
			want = sandbox.ErrNotFound
		}
		if !errors.Is(err, want) {
			return fmt.Errorf("%s: error %w, want %w", name, err, want)
		}
		if err := other.nothingLeft(); err != nil {
			return fmt.Errorf("%s: %w", name, err)
		}
	}
	return nil
}

func checkCancelledCreate(ctx context.Context, e *env) error {
	other := newEnv(e.target, e.base+"/cancelled")
	spec, err := other.newSpec(nil)
	if err != nil {
		return err
	}
	defer other.dir.Close()
	ctx, cancel := context.WithCancelCause(ctx)
	cancel(errTest)
	sb, err := e.target.Backend.Create(ctx, spec)
	if err == nil {
		return errors.Join(errors.New("create with a cancelled context succeeded"), sb.Destroy(context.WithoutCancel(ctx)))
	}
	if !errors.Is(err, errTest) {
		return errorf("error %w does not wrap the cause", err)
	}
	return other.nothingLeft()
}

func checkDestroy(ctx context.Context, e *env) error {
	var wg sync.WaitGroup
	errs := make([]error, 4)
	for i := range errs {
		wg.Go(func() { errs[i] = e.sb.Destroy(ctx) })
	}
	wg.Wait()
	if err := errors.Join(errs...); err != nil {
		return err
	}
	if err := waitDone(e.sb); err != nil {
		return err
	}
	if e.sb.Err() != nil || e.sb.State() != sandbox.StateStopped {
		return errorf("after destroy: state %s, err %w", e.sb.State(), e.sb.Err())
	}
	if _, err := e.sb.Start(ctx, sandbox.Command{Argv: probeArgv("exit", "0")}); !errors.Is(err, sandbox.ErrState) {
		return errorf("start after destroy: %w, want ErrState", err)
	}
	return e.sb.Destroy(ctx)
}

func checkDestroyBusy(ctx context.Context, e *env) error {
	p, _, err := startReady(ctx, ctx, e, sandbox.Command{Argv: probeArgv("daemons", "3", newMarker(), "stay")})
	if err != nil {
		return err
	}
	if err := e.sb.Destroy(ctx); err != nil {
		return err
	}
	if _, err := waitProcess(ctx, p); !errors.Is(err, sandbox.ErrLost) && !errors.Is(err, sandbox.ErrState) {
		return errorf("command of a destroyed sandbox: %w, want ErrLost or ErrState", err)
	}
	return nil
}

func checkKilled(ctx context.Context, e *env) error {
	p, w, err := startReady(ctx, ctx, e, sandbox.Command{Argv: probeArgv("sleep", newMarker())})
	if err != nil {
		return err
	}
	if err := e.target.Kill(ctx, e.sb); err != nil {
		return err
	}
	if _, err := waitProcess(ctx, p); !errors.Is(err, sandbox.ErrLost) {
		return errorf("command: %w, want ErrLost", err)
	}
	if err := waitDone(e.sb); err != nil {
		return err
	}
	if !errors.Is(e.sb.Err(), sandbox.ErrLost) || w.String() != "ready\n" {
		return errorf("sandbox: %w, want ErrLost; output %q", e.sb.Err(), w.String())
	}
	return nil
}

func checkSweep(ctx context.Context, e *env) error {
	removed, err := e.target.Backend.Sweep(ctx)
	if err != nil {
		return err
	}
	for _, r := range removed {
		if r.Session == e.session {
			return fmt.Errorf("swept %+v of a living session", r)
		}
	}
	return e.expectAnswer(ctx, "", "exit", "0")
}

// serviceAddress is where the suite's service listens: an abstract socket,
// since gVisor under an engine may have no loopback.
const serviceAddress = "@caisson-service"

// newService returns a service with a health check that starts to listen with a
// delay and guards a word.
func newService(word string) *sandbox.Service {
	return &sandbox.Service{
		Args: probeArgv("serve", serviceAddress), Env: sandbox.SetVariables(nil, []string{"HOME=" + sandbox.IdentityHome(sandbox.ServiceIdentity), "IDENTITY_SECRET=" + word}),
		HealthCheck: &images.HealthCheck{Test: append([]string{"CMD"}, probeArgv("request", serviceAddress)...), Timeout: 10 * time.Second},
	}
}

// checkService starts a sandbox with a service. It answers as soon as Create
// returns, the agent's commands can't reach it in other ways, and its end is
// reported. The control attacks it under its own identity.
func checkService(ctx context.Context, e *env) (err error) {
	word := newMarker()
	own := newEnv(e.target, filepath.Join(e.base, "service"))
	if own.service = newService(word); e.target.SingleUID {
		own.service.Env = nil
	}
	if err := own.start(ctx, nil); err != nil {
		return err
	}
	defer func() { err = errors.Join(err, own.close(ctx)) }()
	answer, err := own.expectOutput(ctx, "request", serviceAddress)
	if err != nil || answer != "hello\n" {
		return errorf("the service answers %q, %w", answer, err)
	}
	identity := sandbox.ServiceIdentity
	if e.target.SingleUID {
		identity = 0
	}
	s, at := own.sb.Service(), own.sb.Attestation().Service
	if s == nil || at == nil || at.Program != own.service.Args[0] || len(at.ArgsSHA256) != 64 || at.Identity != identity || !at.Healthy || at.Tests < 1 || at.ReadyMS <= 0 {
		attested, _ := json.Marshal(at)
		return fmt.Errorf("there is a service: %t; it is attested as %s", s != nil, attested)
	}
	if e.sb.Service() != nil || e.sb.Attestation().Service != nil {
		return errors.New("a sandbox without a service has one")
	}
	return checkServiceReach(ctx, own, s, identity, word)
}

// checkServiceReach attacks the service from the agent's commands and, as the
// control, under its own identity, which ends it.
func checkServiceReach(ctx context.Context, e *env, s sandbox.ServiceProcess, identity int, word string) error {
	place := strings.Fields(s.Output())
	if len(place) != 4 {
		return fmt.Errorf("the service reports %q", s.Output())
	}
	for _, attacker := range slices.Compact([]int{0, identity}) {
		r, err := e.runAs(ctx, attacker, "reach", place[0], place[1], place[2], word)
		if err != nil {
			return err
		}
		reached := splitLines(r.out)
		if attacker != identity && (len(reached) > 0 || !r.Status.Success()) {
			return fmt.Errorf("the agent's commands reach of the service: %q, %s", reached, r.Status)
		}
		if attacker == identity && !slices.Contains(reached, "terminate") {
			return fmt.Errorf("positive control: under the service's identity only %q is reached", reached)
		}
	}
	select {
	case <-s.Done():
	case <-ctx.Done():
		return fmt.Errorf("the end of the service is not reported: %w", context.Cause(ctx))
	}
	exit, err := s.Wait()
	if err == nil && (exit.Status.Signal == 0 || exit.Status.Cancelled) {
		err = fmt.Errorf("a service that was terminated ended with %s", exit.Status)
	}
	return err
}

func checkUnhealthyService(ctx context.Context, e *env) error {
	check := func(retries int, timeout time.Duration, test ...string) *images.HealthCheck {
		return &images.HealthCheck{Test: append([]string{"CMD"}, probeArgv(test...)...), Interval: time.Nanosecond, Timeout: timeout, Retries: retries}
	}
	for name, tt := range map[string]struct {
		service sandbox.Service
		want    string
	}{
		"the test fails":        {sandbox.Service{Args: probeArgv("sleep", "word"), HealthCheck: check(1, 10*time.Second, "exit", "3")}, "exit code 3"},
		"the test does not end": {sandbox.Service{Args: probeArgv("sleep", "word"), HealthCheck: check(1, 100*time.Millisecond, "ignore-term", "word")}, "timed out"},
		"the service ends":      {sandbox.Service{Args: probeArgv("exit", "4"), HealthCheck: check(1<<31, 10*time.Second, "exit", "3")}, "exit code 4"},
	} {
		own := newEnv(e.target, filepath.Join(e.base, "unhealthy-"+strings.ReplaceAll(name, " ", "-")))
		own.service = &tt.service
		if err := own.expectRefused(ctx, own.start(ctx, nil), sandbox.ErrUnhealthy, tt.want); err != nil {
			return fmt.Errorf("%s: %w", name, err)
		}
	}
	return nil
}

func sessionChecks() []check {
	return []check{
		{name: "sessions see nothing of each other", run: checkStrangers},
		{name: "a fresh sandbox knows nothing of the last", shared: true, fresh: true, run: checkFresh},
		{name: "the root's directories can't be replaced", run: checkReplace},
	}
}

// checkStrangers leaves every possible trace in one session and looks for it
// from another. The control looks from the first.
func checkStrangers(ctx context.Context, e *env) (err error) {
	word := newMarker()
	runCtx, cancel := context.WithCancel(ctx)
	defer cancel()
	p, w, err := startReady(runCtx, ctx, e, sandbox.Command{Argv: probeArgv("plant", word), Grace: testGrace})
	if err != nil {
		return err
	}
	planted := splitLines(strings.TrimSuffix(w.String(), "ready\n"))
	seen, err := e.expectOutput(ctx, "find", word)
	if err != nil {
		return err
	}
	if missing := subtract(planted, splitLines(seen)); len(missing) > 0 || len(planted) < 8 {
		return fmt.Errorf("positive control: %d traces, of which not found in the session itself: %q", len(planted), missing)
	}
	other := newEnv(e.target, filepath.Join(e.base, "other"))
	if err := other.start(ctx, nil); err != nil {
		return err
	}
	defer func() { err = errors.Join(err, other.close(ctx)) }()
	if err := other.expectAnswer(ctx, "", "find", word); err != nil {
		return err
	}
	cancel()
	if _, err := waitProcess(ctx, p); err != nil {
		return err
	}
	// The output of one never appears in the other's.
	mine, err := other.expectOutput(ctx, "args", "mine")
	if err == nil && mine != "mine" {
		err = fmt.Errorf("another session's output is %q", mine)
	}
	return err
}

func splitLines(text string) []string {
	return strings.FieldsFunc(text, func(r rune) bool { return r == '\n' })
}

func subtract(list, other []string) []string {
	return slices.DeleteFunc(slices.Clone(list), func(s string) bool { return slices.Contains(other, s) })
}

// checkFresh destroys a sandbox after writing everywhere and makes another on
// the same workspace. Only the workspace's file may be there.
func checkFresh(ctx context.Context, e *env) (err error) {
	word := newMarker()
	p, _, err := startReady(ctx, ctx, e, sandbox.Command{Argv: probeArgv("plant", word)})
	if err != nil {
		return err
	}
	if err := e.sb.Destroy(ctx); err != nil {
		return err
	}
	if _, err := waitProcess(ctx, p); err == nil {
		return errors.New("the command outlived its sandbox")
	}
	next := newEnv(e.target, e.base)
	if err := next.start(ctx, nil); err != nil {
		return err
	}
	defer func() { err = errors.Join(err, next.close(ctx)) }()
	if next.sb.ID() == e.sb.ID() {
		return fmt.Errorf("the container %s is used again", e.sb.ID())
	}
	return next.expectAnswer(ctx, "file in /workspace\n", "find", word)
}

// checkReplace tries to put symlinks where a later start or exec in the
// container would mount or look (CVE-2025-31133 and similar). The control is a
// directory in the workspace.
func checkReplace(ctx context.Context, e *env) error {
	if _, err := e.expectOutput(ctx, "mkdir", "replaceable"); err != nil {
		return err
	}
	return e.expectAnswer(ctx, "replaceable\n", "replace", "/dev", "/dev/null", "/dev/pts", "/dev/console", "/proc", "/proc/sys", "/sys", "/etc", "/etc/hosts",
		"/etc/passwd", "/tmp", "/run", sandbox.HomeDir, "/usr", "/bin", "/lib", sandbox.WorkspaceDir, "/.caisson", sandbox.GuestPath, "replaceable")
}
