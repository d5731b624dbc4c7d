package docker

import (
	"bytes"
	"context"
	"errors"
	"io"
	"maps"
	"net"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/docker/docker/api/types/container"
	"github.com/docker/docker/api/types/events"
	"github.com/docker/docker/api/types/filters"

	"github.com/caisson-run/caisson/sandbox"
	"github.com/caisson-run/caisson/sandbox/internal/ownership"
	"github.com/caisson-run/caisson/sandbox/internal/worktest"
	"github.com/caisson-run/caisson/sandbox/sandboxtest"
	"github.com/caisson-run/caisson/sandbox/sandboxtest/privateengine"
)

const lossTime = 30 * time.Second

// answerTime is how long a guest's hello may take, on a loaded machine too.
const answerTime = 8 * time.Second

// once is a command that writes a line each time it is run.
const once = "echo ran >>times; echo running; exec sleep 1000"

// lostCommand runs [once], calls do and requires a typed loss: no exit, and no
// second run.
func lostCommand(t *testing.T, b *bed, s sandbox.Sandbox, do func()) {
	t.Helper()
	started := make(chan struct{})
	p, err := s.Start(t.Context(), sandbox.Command{
		Argv: []string{"sh", "-c", once}, Stdout: onWrite(func() { close(started) }),
	})
	must(t, err)
	await(t, started, "the command's first output")
	do()
	wantLost(t, p)
	await(t, s.Done(), "the sandbox's loss")
	if !errors.Is(s.Err(), sandbox.ErrLost) || s.State() != sandbox.StateStopped {
		t.Errorf("the sandbox is %v, lost with %v", s.State(), s.Err())
	}
	if _, err := s.Start(t.Context(), sandbox.Command{Argv: []string{"true"}}); !errors.Is(err, sandbox.ErrLost) {
		t.Errorf("a start afterwards: %v, want ErrLost", err)
	}
	t.Logf("lost: %v", s.Err())
	ran, err := os.ReadFile(filepath.Join(b.workspace, "times"))
	if must(t, err); string(ran) != "ran\n" {
		t.Errorf("the command was run: %q", ran)
	}
}

// wantLost requires that a command ends in time with a typed loss.
func wantLost(t *testing.T, p sandbox.Process) {
	t.Helper()
	ended := make(chan struct{})
	var exit sandbox.Exit
	var err error
	go func() {
		defer close(ended)
		exit, err = p.Wait()
	}()
	await(t, ended, "the command's loss")
	if !errors.Is(err, sandbox.ErrLost) {
		t.Errorf("the command ended with %v and %v, want ErrLost", exit.Status, err)
	}
}

func await(t *testing.T, closed <-chan struct{}, what string) {
	t.Helper()
	select {
	case <-closed:
	case <-time.After(lossTime):
		t.Fatalf("not within %v: %s", lossTime, what)
	}
}

type onWrite func()

func (f onWrite) Write(p []byte) (int, error) { f(); return len(p), nil }

// goesOn requires that the sandbox can be destroyed without a trace, and that a
// new session works.
func goesOn(t *testing.T, b *bed, s sandbox.Sandbox, session string) {
	t.Helper()
	must(t, s.Destroy(t.Context()))
	b.nothingLeft(t, session)
	next, err := b.backend.Create(t.Context(), b.spec(t, newSession()))
	must(t, err)
	if out, _ := worktest.Shell(t, next, "echo again"); out != "again\n" {
		t.Errorf("the new session said %q", out)
	}
	must(t, next.Destroy(t.Context()))
	if left, err := b.backend.Sweep(t.Context()); len(left) > 0 || err != nil {
		t.Errorf("a sweep finds %+v, %v", left, err)
	}
}

func begin(t *testing.T, b *bed) (sandbox.Sandbox, string) {
	t.Helper()
	session := newSession()
	s, err := b.backend.Create(t.Context(), b.spec(t, session))
	must(t, err)
	return s, session
}

// An engine that is killed or stopped during a command, with and without
// live-restore, is a lost sandbox. When it is back, everything works again.
func TestEngineEnds(t *testing.T) {
	t.Parallel()
	for name, tt := range map[string]struct {
		args []string
		end  func(*privateengine.Engine, testing.TB)
	}{
		"killed":                    {nil, (*privateengine.Engine).Kill},
		"killed, with live-restore": {[]string{"--live-restore"}, (*privateengine.Engine).Kill},
		"restarted":                 {nil, (*privateengine.Engine).Stop},
		"restarted, live-restore":   {[]string{"--live-restore"}, (*privateengine.Engine).Stop},
	} {
		t.Run(name, func(t *testing.T) {
			e := privateengine.New(t, tt.args...)
			b := privateBed(t, e, Options{})
			s, session := begin(t, b)
			b.backend.remote.loss, b.backend.remote.remove = short, short
			lostCommand(t, b, s, func() { tt.end(e, t) })
			if err := s.Destroy(t.Context()); !errors.Is(err, sandbox.ErrUnavailable) {
				t.Errorf("destroy without an engine: %v", err)
			}
			if list, err := b.backend.List(t.Context()); !errors.Is(err, sandbox.ErrUnavailable) || len(list) != 1 ||
				list[0].State != sandbox.ListedUnknown || !list[0].GivenUp {
				t.Errorf("list without an engine: %+v, %v", list, err)
			}
			e.Start(t)
			b.backend.remote.deadlines = defaultDeadlines()
			goesOn(t, b, s, session)
		})
	}
}

// A container whose engine and Caisson were both killed is swept when they are
// back.
func TestEngineAndOwnerKilled(t *testing.T) {
	e := privateengine.New(t, "--live-restore")
	b := privateBed(t, e, Options{})
	session := newSession()
	t.Setenv("DOCKER_HOST", e.Host())
	o := startOwner(t, b, session)
	e.Kill(t)
	must(t, o.Process.Kill())
	_ = o.Wait() // it was killed
	e.Start(t)
	left, err := b.backend.Sweep(t.Context())
	must(t, err)
	if len(left) == 0 {
		t.Error("control: nothing was left to sweep")
	}
	b.nothingLeft(t, session)
}

// freezing is an address of an engine that it stops at a given request.
type freezing struct {
	engine *privateengine.Engine
	socket string
	mu     sync.Mutex
	verb   string
	frozen chan struct{}
}

func newFreezing(t *testing.T, e *privateengine.Engine) *freezing {
	t.Helper()
	f := &freezing{engine: e, socket: e.Dir() + "/f.sock", frozen: make(chan struct{}, 1)}
	l, err := net.Listen("unix", f.socket)
	must(t, err)
	var all sync.WaitGroup
	t.Cleanup(func() {
		l.Close()
		all.Wait()
	})
	all.Go(func() {
		for {
			conn, err := l.Accept()
			if err != nil {
				return
			}
			all.Go(func() { f.forward(t, conn) })
		}
	})
	return f
}

// at sets the request at which the engine stops.
func (f *freezing) at(verb string) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.verb = verb
}

func (f *freezing) forward(t *testing.T, conn net.Conn) {
	defer conn.Close()
	to, err := net.Dial("unix", f.engine.Socket())
	if err != nil {
		return
	}
	defer to.Close()
	go func() {
		_, _ = io.Copy(conn, to) // either side may hang up
		conn.Close()
	}()
	buf := make([]byte, 64<<10)
	for {
		n, err := conn.Read(buf)
		f.freezeAtVerb(t, buf[:n])
		if _, writeErr := to.Write(buf[:n]); err != nil || writeErr != nil {
			return
		}
	}
}

func (f *freezing) freezeAtVerb(t *testing.T, request []byte) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.verb != "" && bytes.Contains(request, []byte(f.verb)) {
		f.verb = ""
		f.engine.Freeze(t)
		f.frozen <- struct{}{}
	}
}

// An engine that stops at any call is an error in bounded time. What it makes
// when it continues is removed, and nothing is made twice.
func TestEngineFreezes(t *testing.T) {
	t.Parallel()
	e := privateengine.New(t)
	f := newFreezing(t, e)
	patience := defaultDeadlines()
	patience.ask, patience.attach, patience.create, patience.start = time.Second, time.Second, time.Second, time.Second
	patience.remove, patience.cancel, patience.loss = time.Second, time.Second, time.Second
	// Answers before the stop have the usual time.
	hurries := map[string]func(*deadlines){
		"/images/":           func(d *deadlines) { d.ask = time.Second },
		"/containers/create": func(d *deadlines) { d.create = time.Second },
		"/attach":            func(d *deadlines) { d.attach = time.Second },
		"/start":             func(d *deadlines) { d.start = time.Second },
		"/json HTTP":         func(d *deadlines) { d.ask = time.Second },
	}
	for _, verb := range sandboxtest.Sampled(t, slices.Sorted(maps.Keys(hurries))...) {
		hurry := hurries[verb]
		t.Run("at create "+strings.Trim(verb, "/"), func(t *testing.T) {
			b := privateBed(t, e, Options{})
			b.backend.endpoint.host = "unix://" + f.socket
			_, err := b.backend.Check(t.Context())
			must(t, err)
			some := patience
			some.ask, some.attach, some.create, some.start = answerTime, answerTime, answerTime, answerTime
			hurry(&some)
			b.backend.remote.deadlines, b.backend.lifecycle.AnswerTime = some, answerTime
			session := newSession()
			f.at(verb)
			s, err := b.backend.Create(t.Context(), b.spec(t, session))
			select {
			case <-f.frozen:
			case <-time.After(lossTime):
				t.Fatalf("the engine was never asked for %s: %v", verb, err)
			}
			if s != nil || !errors.Is(err, sandbox.ErrUnavailable) {
				t.Errorf("create: %v, want ErrUnavailable", err)
			}
			t.Log(err)
			b.backend.remote.deadlines = patience
			if _, err := b.backend.Sweep(t.Context()); !errors.Is(err, sandbox.ErrUnavailable) {
				t.Errorf("sweep: %v, want ErrUnavailable", err)
			}
			if _, err := b.backend.List(t.Context()); !errors.Is(err, sandbox.ErrUnavailable) {
				t.Errorf("list: %v, want ErrUnavailable", err)
			}
			e.Thaw(t)
			b.backend.remote.deadlines = defaultDeadlines()
			b.sweepsClean(t, session)
			if n := b.creations(t, session); n > 1 || verb == "/start" && n != 1 {
				t.Errorf("the engine made %d containers", n)
			}
		})
	}
	t.Run("while a command runs", func(t *testing.T) {
		b := privateBed(t, e, Options{})
		b.backend.endpoint.host = "unix://" + f.socket
		_, err := b.backend.Check(t.Context())
		must(t, err)
		b.backend.lifecycle.AnswerTime = answerTime
		s, session := begin(t, b)
		b.backend.remote.deadlines = patience
		ctx, cancel := context.WithCancel(t.Context())
		started := make(chan struct{})
		p, err := s.Start(ctx, sandbox.Command{
			Argv: []string{"sh", "-c", once}, Stdout: onWrite(func() { close(started) }), Grace: 100 * time.Millisecond,
		})
		must(t, err)
		await(t, started, "the command's first output")
		e.Freeze(t)
		defer e.Thaw(t)
		cancel()
		wantLost(t, p)
		await(t, s.Done(), "the sandbox's loss")
		if err := s.Destroy(t.Context()); !errors.Is(err, sandbox.ErrUnavailable) {
			t.Errorf("destroy: %v", err)
		}
		e.Thaw(t)
		b.backend.remote.deadlines = defaultDeadlines()
		goesOn(t, b, s, session)
	})
	t.Run("for a moment", func(t *testing.T) {
		b := privateBed(t, e, Options{})
		s, session := begin(t, b)
		e.Freeze(t)
		thawed := make(chan struct{})
		time.AfterFunc(200*time.Millisecond, func() {
			defer close(thawed)
			e.Thaw(t)
		})
		p, err := s.Start(t.Context(), sandbox.Command{Argv: []string{"sh", "-c", "exit 7"}})
		await(t, thawed, "the engine's thaw")
		must(t, err)
		if exit, err := p.Wait(); err != nil || exit.Status.Code != 7 {
			t.Errorf("a command over a short stop: %v, %v", exit.Status, err)
		}
		goesOn(t, b, s, session)
	})
}

// sweepsClean sweeps until nothing of a session is left. An engine that
// continues may still make something.
func (b *bed) sweepsClean(t *testing.T, session string) {
	t.Helper()
	deadline := time.Now().Add(lossTime)
	for {
		_, err := b.backend.Sweep(t.Context())
		must(t, err)
		left, err := b.leftovers(session)
		must(t, err)
		if len(left) == 0 {
			break
		}
		if time.Now().After(deadline) {
			t.Fatalf("left of %s: %q", session, left)
		}
		b.removeLate(t, session)
	}
}

// removeLate removes a container that the engine made after a sweep had undone
// its cleanup list. A sweep would do so only if its owner, this process, were
// dead or ten minutes older.
func (b *bed) removeLate(t *testing.T, session string) {
	t.Helper()
	list, err := b.backend.remote.listContainers(t.Context())
	must(t, err)
	for _, c := range list {
		id, of, err := ownership.FromLabels(c.Labels)
		must(t, err)
		if of != session || c.State != container.StateCreated {
			continue
		}
		if b.backend.isOrphan(id, c.State, time.Now()) || !b.backend.isOrphan(id, c.State, time.Now().Add(-2*neverStarted)) {
			t.Error("a container that was never started is not swept in time")
		}
		must(t, removeContainer(t.Context(), b.backend.remote, c.ID))
	}
}

// creations counts the containers that the engine has ever made for a session.
func (b *bed) creations(t *testing.T, session string) int {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), 10*time.Second)
	defer cancel()
	messages, errs := b.backend.remote.engine.Events(ctx, events.ListOptions{
		Since: "0", Until: time.Now().Add(time.Second).Format(time.RFC3339Nano),
		Filters: filters.NewArgs(filters.Arg("label", ownership.LabelSession+"="+session), filters.Arg("event", string(events.ActionCreate))),
	})
	n := 0
	for {
		select {
		case <-messages:
			n++
		case <-errs:
			return n
		}
	}
}

// A shim that is killed takes its container with it.
func TestShimKilled(t *testing.T) {
	t.Parallel()
	e := privateengine.New(t)
	b := privateBed(t, e, Options{})
	s, session := begin(t, b)
	lostCommand(t, b, s, func() {
		if e.KillShims(t) == 0 {
			t.Error("control: no shim was found")
		}
	})
	goesOn(t, b, s, session)
}

// If an operator removes or ends the container during a command, that is a
// typed loss. Other operations change nothing.
func TestOperator(t *testing.T) {
	e := privateengine.New(t)
	stop := 0
	ends := []struct {
		name string
		do   func(ctx context.Context, c operations, id string) error
	}{
		{"removes it", func(ctx context.Context, c operations, id string) error {
			return c.ContainerRemove(ctx, id, container.RemoveOptions{Force: true})
		}},
		{"kills it", func(ctx context.Context, c operations, id string) error { return c.ContainerKill(ctx, id, "KILL") }},
		{"stops it", func(ctx context.Context, c operations, id string) error {
			return c.ContainerStop(ctx, id, container.StopOptions{Timeout: &stop})
		}},
		{"restarts it", func(ctx context.Context, c operations, id string) error {
			// The mounts can't be made a second time, so that it only stops.
			if err := c.ContainerRestart(ctx, id, container.StopOptions{Timeout: &stop}); err == nil {
				return errors.New("a container of ours was started twice")
			}
			return nil
		}},
	}
	for _, tt := range sandboxtest.Sampled(t, ends...) {
		t.Run(tt.name, func(t *testing.T) {
			b := privateBed(t, e, Options{})
			s, session := begin(t, b)
			lostCommand(t, b, s, func() { must(t, tt.do(t.Context(), b.operator(t), s.ID())) })
			goesOn(t, b, s, session)
		})
	}
	t.Run("pauses it", func(t *testing.T) {
		b := privateBed(t, e, Options{})
		_, err := b.backend.Check(t.Context())
		must(t, err)
		b.backend.lifecycle.AnswerTime = answerTime
		s, session := begin(t, b)
		ctx, cancel := context.WithCancel(t.Context())
		defer cancel()
		p, err := s.Start(ctx, sandbox.Command{Argv: []string{"sleep", "1000"}, Grace: 100 * time.Millisecond})
		must(t, err)
		must(t, b.operator(t).ContainerPause(t.Context(), s.ID()))
		if list, err := b.backend.List(t.Context()); err != nil || len(list) != 1 || list[0].State != sandbox.ListedPaused {
			t.Errorf("list: %+v, %v", list, err)
		}
		cancel()
		wantLost(t, p)
		goesOn(t, b, s, session)
	})
	t.Run("pauses it for a moment", func(t *testing.T) {
		b := privateBed(t, e, Options{})
		s, session := begin(t, b)
		p, err := s.Start(t.Context(), sandbox.Command{Argv: []string{"sh", "-c", "sleep 0.3; exit 3"}})
		must(t, err)
		must(t, b.operator(t).ContainerPause(t.Context(), s.ID()))
		must(t, b.operator(t).ContainerUnpause(t.Context(), s.ID()))
		if exit, err := p.Wait(); err != nil || exit.Status.Code != 3 {
			t.Errorf("the command ended with %v, %v", exit.Status, err)
		}
		goesOn(t, b, s, session)
	})
	t.Run("renames it", func(t *testing.T) {
		b := privateBed(t, e, Options{})
		s, session := begin(t, b)
		must(t, b.operator(t).ContainerRename(t.Context(), s.ID(), "renamed"))
		if out, _ := worktest.Shell(t, s, "echo still here"); out != "still here\n" {
			t.Errorf("it said %q", out)
		}
		goesOn(t, b, s, session)
	})
	t.Run("renames that of a dead owner", func(t *testing.T) {
		b := privateBed(t, e, Options{})
		t.Setenv("DOCKER_HOST", e.Host())
		session := newSession()
		o := startOwner(t, b, session)
		_, err := b.backend.Check(t.Context())
		must(t, err)
		must(t, b.operator(t).ContainerRename(t.Context(), o.container, "renamed-too"))
		must(t, b.operator(t).ContainerPause(t.Context(), o.container)) // or it would go by itself
		must(t, o.Process.Kill())
		_ = o.Wait() // it was killed
		left, err := b.backend.Sweep(t.Context())
		must(t, err)
		if len(left) == 0 || left[0].Kind != string(ownership.KindContainer) {
			t.Errorf("swept %+v, want the container first", left)
		}
		b.nothingLeft(t, session)
	})
}

// operations are an operator's calls, which this package never makes.
type operations interface {
	ContainerRemove(ctx context.Context, id string, o container.RemoveOptions) error
	ContainerKill(ctx context.Context, id, signal string) error
	ContainerStop(ctx context.Context, id string, o container.StopOptions) error
	ContainerRestart(ctx context.Context, id string, o container.StopOptions) error
	ContainerPause(ctx context.Context, id string) error
	ContainerUnpause(ctx context.Context, id string) error
	ContainerRename(ctx context.Context, id, name string) error
}

func (b *bed) operator(t *testing.T) operations {
	t.Helper()
	r, _, err := b.backend.connect(t.Context())
	must(t, err)
	return r.engine.(operations)
}

// If the socket is replaced during a session, connections continue and new
// calls fail with a typed error. When the engine is back, everything can be
// removed.
func TestSocketReplaced(t *testing.T) {
	e := privateengine.New(t)
	b := privateBed(t, e, Options{})
	s, session := begin(t, b)
	_ = b.backend.remote.engine.Close() // idle connections would be used
	must(t, os.Rename(e.Socket(), e.Socket()+".away"))
	l, err := net.Listen("unix", e.Socket())
	must(t, err)
	go func() { // it answers garbage
		for {
			conn, err := l.Accept()
			if err != nil {
				return
			}
			_, _ = conn.Write([]byte("HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\n{]")) // a test's
			conn.Close()
		}
	}()
	if out, _ := worktest.Shell(t, s, "echo still here"); out != "still here\n" {
		t.Errorf("it said %q", out)
	}
	if _, err := b.backend.Create(t.Context(), b.spec(t, newSession())); err == nil {
		t.Error("a sandbox was made by something that is no engine")
	} else {
		t.Log(err)
	}
	if _, err := b.backend.Sweep(t.Context()); !errors.Is(err, sandbox.ErrUnavailable) {
		t.Errorf("sweep: %v, want ErrUnavailable", err)
	}
	l.(*net.UnixListener).SetUnlinkOnClose(false)
	must(t, l.Close())
	must(t, os.Rename(e.Socket()+".away", e.Socket()))
	if left, err := b.backend.Sweep(t.Context()); err != nil || len(left) == 0 || left[0].Session == session {
		t.Errorf("a sweep of what the failed start left: %+v, %v", left, err)
	}
	goesOn(t, b, s, session)
}
