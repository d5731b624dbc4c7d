package docker

import (
	"bytes"
	"context"
	"encoding/binary"
	"errors"
	"io"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"go.uber.org/zap/zaptest"

	"github.com/caisson-run/caisson/images"
	"github.com/caisson-run/caisson/limits"
	"github.com/caisson-run/caisson/sandbox"
)

// fakeBed is a backend on a fake engine. It needs neither an engine nor root.
type fakeBed struct {
	*bed
	engine *fakeEngine
}

func newFakeBed(t *testing.T) *fakeBed {
	t.Helper()
	b := &fakeBed{bed: makeBed(t), engine: newFakeEngine(t)}
	guest := filepath.Join(t.TempDir(), "guest")
	must(t, os.WriteFile(guest, []byte("#!/bin/false\n"), 0o755))
	must(t, os.Chmod(guest, 0o755))
	backend, err := New(Options{Host: "unix://" + b.engine.socket, GuestPath: guest, StateDir: b.state, Logger: zaptest.NewLogger(t)})
	must(t, err)
	t.Cleanup(func() { backend.Close() })
	b.backend = backend
	return b
}

func (b *fakeBed) fakeSpec(t *testing.T) sandbox.Spec {
	t.Helper()
	spec := b.spec(t, newSession())
	spec.Image = images.Reference{Scheme: images.SchemeName, Value: "some/image"}
	return spec
}

func frame(kind byte, payload string) []byte {
	header := make([]byte, 8, 8+len(payload))
	header[0] = kind
	binary.BigEndian.PutUint32(header[4:], uint32(len(payload)))
	return append(header, payload...)
}

// Whatever the engine does during Create, it fails with the right class and a
// message about the cause, and leaves nothing.
func TestCreateFaults(t *testing.T) {
	ended := func(b *fakeBed) {
		b.engine.answers["POST /containers/ID/start"] = func(w http.ResponseWriter, _ *http.Request) {
			for _, c := range b.engine.containers {
				c.state.ExitCode = 2
			}
			w.WriteHeader(http.StatusNoContent)
		}
	}
	for _, tt := range []struct {
		name  string
		spoil func(b *fakeBed)
		hangs func(d *deadlines) // what of them the test has to wait for
		want  error
		text  string
	}{
		{name: "hangs at ping", hangs: func(d *deadlines) { d.ask = short }, spoil: func(b *fakeBed) { b.engine.answers["HEAD /_ping"] = b.engine.hang }, want: sandbox.ErrUnavailable, text: "may hang"},
		{name: "hangs at info", hangs: func(d *deadlines) { d.ask = short }, spoil: func(b *fakeBed) { b.engine.answers["GET /info"] = b.engine.hang }, want: sandbox.ErrUnavailable, text: "may hang"},
		{name: "old API", spoil: func(b *fakeBed) { b.engine.api = "1.40" }, want: sandbox.ErrUnsupported, text: "Docker 20.10"},
		{name: "API of the future", spoil: func(b *fakeBed) { b.engine.takesFrom("1.99") }, want: sandbox.ErrUnsupported, text: "update Caisson"},
		{name: "Windows containers", spoil: func(b *fakeBed) { b.engine.info.OSType = "windows" }, want: sandbox.ErrUnsupported, text: "Linux containers"},
		{name: "no seccomp", spoil: func(b *fakeBed) { b.engine.info.SecurityOptions = nil }, want: sandbox.ErrUnsupported, text: "seccomp"},
		{name: "rootless", spoil: func(b *fakeBed) {
			b.engine.info.SecurityOptions = append(b.engine.info.SecurityOptions, "name=rootless")
		}, want: sandbox.ErrUnsupported, text: "rootless"},
		{name: "no pids limit", spoil: func(b *fakeBed) { b.engine.info.PidsLimit = false }, want: sandbox.ErrUnsupported, text: "pids"},
		{name: "no runtime", spoil: func(b *fakeBed) { b.engine.info.DefaultRuntime = "crun" }, want: sandbox.ErrNotFound, text: "runc, runsc"},
		{name: "another processor", spoil: func(b *fakeBed) { b.engine.info.Architecture = "aarch64" }, want: sandbox.ErrUnsupported, text: "linux/amd64"},
		{name: "no image", spoil: func(b *fakeBed) {
			b.engine.answers["GET /images/NAME/json"] = failure(http.StatusNotFound, "No such image")
		}, want: sandbox.ErrNotFound, text: "docker pull some/image"},
		{name: "does not share the file system", spoil: func(b *fakeBed) {
			b.engine.answers["POST /containers/create"] = failure(http.StatusBadRequest, `invalid mount config for type "bind": bind source path does not exist: /x`)
		}, want: ErrNotShared},
		{name: "refuses to create", spoil: func(b *fakeBed) {
			b.engine.answers["POST /containers/create"] = failure(http.StatusInternalServerError, "no space left on device")
		}, want: sandbox.ErrUnavailable, text: "no space left"},
		{name: "hangs at create", hangs: func(d *deadlines) { d.create = short }, spoil: func(b *fakeBed) { b.engine.answers["POST /containers/create"] = b.engine.hang }, want: sandbox.ErrUnavailable, text: "create container"},
		{name: "hangs at attach", hangs: func(d *deadlines) { d.attach = short }, spoil: func(b *fakeBed) { b.engine.answers["POST /containers/ID/attach"] = b.engine.hang }, want: sandbox.ErrUnavailable, text: "attach"},
		{name: "refuses to attach", spoil: func(b *fakeBed) {
			b.engine.answers["POST /containers/ID/attach"] = failure(http.StatusConflict, "it is paused")
		}, want: sandbox.ErrUnavailable, text: "attach"},
		{name: "hangs up at attach", spoil: func(b *fakeBed) {
			b.engine.answers["POST /containers/ID/attach"] = func(w http.ResponseWriter, _ *http.Request) {
				conn, _, err := http.NewResponseController(w).Hijack()
				if err == nil {
					conn.Close()
				}
			}
		}, want: sandbox.ErrUnavailable, text: "attach"},
		{name: "can't start", spoil: func(b *fakeBed) {
			b.engine.attached(nil)
			b.engine.answers["POST /containers/ID/start"] = failure(http.StatusInternalServerError, "OCI runtime create failed")
		}, want: sandbox.ErrUnavailable, text: "OCI runtime create failed"},
		{name: "hangs at start", hangs: func(d *deadlines) { d.start = short }, spoil: func(b *fakeBed) {
			b.engine.attached(nil)
			b.engine.answers["POST /containers/ID/start"] = b.engine.hang
		}, want: sandbox.ErrUnavailable, text: "start container"},
		{name: "guest crashes", spoil: func(b *fakeBed) {
			b.engine.attached(frame(2, "panic: the guest has a bug"))
			ended(b)
		}, want: sandbox.ErrUnavailable, text: "the guest has a bug"},
		{name: "guest says nothing", spoil: func(b *fakeBed) {
			b.engine.attached([]byte{})
			ended(b)
		}, want: sandbox.ErrUnavailable, text: "ended with 2"},
		{name: "connection ends in a frame", spoil: func(b *fakeBed) {
			b.engine.attached(frame(1, "0123456789")[:12])
		}, want: sandbox.ErrUnavailable},
		{name: "stream of garbage", spoil: func(b *fakeBed) {
			b.engine.attached(bytes.Repeat([]byte("\xff"), 64))
		}, want: sandbox.ErrUnavailable},
		{name: "guest speaks garbage", spoil: func(b *fakeBed) {
			b.engine.attached(frame(1, strings.Repeat("\xff", 64)))
		}, want: sandbox.ErrUnavailable},
	} {
		t.Run(tt.name, func(t *testing.T) {
			b := newFakeBed(t)
			tt.spoil(b)
			if tt.hangs != nil {
				tt.hangs(&b.backend.times)
			}
			spec := b.fakeSpec(t)
			s, err := b.backend.Create(t.Context(), spec)
			if s != nil || !errors.Is(err, tt.want) || !strings.Contains(err.Error(), tt.text) {
				t.Fatalf("error %v, want %v about %q", err, tt.want, tt.text)
			}
			t.Log(err)
			if b.engine.left() > 0 {
				t.Error("a container is left")
			}
			for _, dir := range []string{spec.Dir, filepath.Join(b.state, "cleanup", spec.Session+".json"), filepath.Join(b.workspace, ".git")} {
				if names, err := os.ReadDir(dir); len(names) > 0 || err == nil && dir != spec.Dir {
					t.Errorf("left in %s: %v", dir, names)
				}
			}
		})
	}
}

// attached makes the engine accept the connection, send bytes and hang up, or
// hold it if there are none.
func (f *fakeEngine) attached(send []byte) {
	f.answers["POST /containers/ID/attach"] = f.hijack(func(conn net.Conn) {
		if send == nil {
			<-f.released
			return
		}
		conn.Write(send)
		// Like the engine, it still accepts input that nobody reads.
		conn.(*net.UnixConn).CloseWrite()
		io.Copy(io.Discard, conn)
	})
}

func TestNoEngine(t *testing.T) {
	b := newFakeBed(t)
	b.backend.endpoint.host = "unix:///nowhere/docker.sock"
	_, err := b.backend.Create(t.Context(), b.fakeSpec(t))
	if !errors.Is(err, sandbox.ErrUnavailable) || !strings.Contains(err.Error(), "/nowhere/docker.sock") || !strings.Contains(err.Error(), "start it") {
		t.Errorf("error %v", err)
	}
}

// A failure isn't remembered: an engine that starts later works.
func TestEngineComesBack(t *testing.T) {
	b := newFakeBed(t)
	b.backend.times = shortDeadlines()
	b.engine.answers["GET /info"] = b.engine.hang
	if _, err := b.backend.Check(t.Context()); !errors.Is(err, sandbox.ErrUnavailable) {
		t.Fatalf("error %v", err)
	}
	b.engine.mu.Lock()
	delete(b.engine.answers, "GET /info")
	b.engine.mu.Unlock()
	b.backend.times = defaultDeadlines()
	if _, err := b.backend.Check(t.Context()); err != nil {
		t.Error(err)
	}
}

// A cancelled call returns the cause. What the engine made anyway is removed.
func TestCreateCancelledWhileTheEngineWorks(t *testing.T) {
	b := newFakeBed(t)
	stop := errors.New("stop")
	ctx, cancel := context.WithCancelCause(t.Context())
	b.engine.answers["POST /containers/create"] = func(w http.ResponseWriter, r *http.Request) {
		cancel(stop) // in the middle of it
		b.engine.mu.Lock()
		defer b.engine.mu.Unlock()
		b.engine.create(w, r)
	}
	_, err := b.backend.Create(ctx, b.fakeSpec(t))
	if !errors.Is(err, stop) {
		t.Errorf("error %v", err)
	}
	if !b.engine.called("DELETE /containers/ID") || b.engine.left() > 0 {
		t.Error("the container is left")
	}
}

// newExaminedBed returns a bed whose image is already examined, so that the
// next start makes one container. Its guest says nothing.
func newExaminedBed(t *testing.T) *fakeBed {
	t.Helper()
	b := newFakeBed(t)
	b.engine.attached([]byte{})
	if _, err := b.backend.Create(t.Context(), b.fakeSpec(t)); err == nil || b.engine.left() > 0 {
		t.Fatalf("error %v, %d containers left", err, b.engine.left())
	}
	return b
}

// A container whose removal is already in progress is waited for.
func TestRemovalInProgress(t *testing.T) {
	b := newExaminedBed(t)
	conflicts := 0
	b.engine.answers["DELETE /containers/ID"] = func(w http.ResponseWriter, r *http.Request) {
		conflicts++
		failure(http.StatusConflict, "removal of container is already in progress")(w, r)
	}
	asked := 0
	b.engine.answers["GET /containers/ID/json"] = func(w http.ResponseWriter, r *http.Request) {
		b.engine.mu.Lock()
		defer b.engine.mu.Unlock()
		if asked++; asked > 3 {
			clear(b.engine.containers)
			failure(http.StatusNotFound, "No such container")(w, r)
			return
		}
		answer(http.StatusOK, map[string]any{"Id": "x"})(w, r)
	}
	_, err := b.backend.Create(t.Context(), b.fakeSpec(t))
	if err == nil || strings.Contains(err.Error(), "destroy") || conflicts != 1 {
		t.Errorf("error %v after %d conflicts", err, conflicts)
	}
}

// The engine's removal can race with ours.
func TestRemovalRaces(t *testing.T) {
	b := newExaminedBed(t)
	refused := 0
	b.engine.answers["DELETE /containers/ID"] = func(w http.ResponseWriter, r *http.Request) {
		b.engine.mu.Lock()
		defer b.engine.mu.Unlock()
		if refused++; refused > 1 {
			clear(b.engine.containers)
			w.WriteHeader(http.StatusNoContent)
			return
		}
		failure(http.StatusInternalServerError, "unable to remove filesystem: directory not empty")(w, r)
	}
	_, err := b.backend.Create(t.Context(), b.fakeSpec(t))
	if err == nil || strings.Contains(err.Error(), "destroy") || refused != 2 || b.engine.left() > 0 {
		t.Errorf("error %v after %d requests, %d left", err, refused, b.engine.left())
	}
}

// If a container can't be removed, that is reported, and the next sweep removes
// it by the cleanup list.
func TestDestroyThatFails(t *testing.T) {
	b := newFakeBed(t)
	b.backend.times.remove = short
	b.engine.attached([]byte{})
	b.engine.answers["DELETE /containers/ID"] = b.engine.hang
	spec := b.fakeSpec(t)
	_, err := b.backend.Create(t.Context(), spec)
	if err == nil || !strings.Contains(err.Error(), "destroy docker sandbox caisson-"+spec.Session) {
		t.Errorf("error %v does not report what is left", err)
	}
	if b.engine.left() == 0 {
		t.Fatal("control: nothing is left")
	}
	b.engine.mu.Lock()
	delete(b.engine.answers, "DELETE /containers/ID")
	b.engine.mu.Unlock()
	b.backend.remote.deadlines = defaultDeadlines()
	left, err := b.backend.Sweep(t.Context())
	must(t, err)
	if b.engine.left() > 0 || len(left) == 0 || left[0].Kind != "container" {
		t.Errorf("swept %+v, %d left on the engine", left, b.engine.left())
	}
}

func TestSpecsThatAreRefused(t *testing.T) {
	b := newFakeBed(t)
	for name, spoil := range map[string]func(*sandbox.Spec){
		"no session":          func(s *sandbox.Spec) { s.Session = "" },
		"hostile session":     func(s *sandbox.Spec) { s.Session = "../x" },
		"zero resources":      func(s *sandbox.Spec) { s.Resources = limits.Resources{} },
		"no workspace":        func(s *sandbox.Spec) { s.Workspace.Dir = nil },
		"no directory":        func(s *sandbox.Spec) { s.Dir = "" },
		"directory elsewhere": func(s *sandbox.Spec) { s.Dir = os.TempDir() },
		"relative directory":  func(s *sandbox.Spec) { s.Dir = "x" },
		"git mode":            func(s *sandbox.Spec) { s.Git = "all" },
		"the state directory": func(s *sandbox.Spec) { s.Dir = b.state },
		"another's directory": func(s *sandbox.Spec) { s.Session = newSession() },
		"a file as the work":  func(s *sandbox.Spec) { s.Workspace.Dir = openFile(t) },
	} {
		t.Run(name, func(t *testing.T) {
			spec := b.fakeSpec(t)
			spoil(&spec)
			if _, err := b.backend.Create(t.Context(), spec); !errors.Is(err, sandbox.ErrInvalid) {
				t.Errorf("error %v", err)
			}
		})
	}
	if b.engine.called("POST /containers/create") {
		t.Error("the engine was asked for a container")
	}
}

func openFile(t *testing.T) *os.File {
	t.Helper()
	f, err := os.Create(filepath.Join(t.TempDir(), "file"))
	must(t, err)
	t.Cleanup(func() { f.Close() })
	return f
}

// An engine whose API versions we don't speak is the same error for images.
func TestImageEngineOfAnotherTime(t *testing.T) {
	for api, hint := range map[string]string{"1.40": "Docker 20.10", "1.99": "update Caisson"} {
		f := newFakeEngine(t)
		f.api = api
		if api == "1.99" {
			f.takesFrom(api)
		}
		e, err := NewImageEngine("unix://"+f.socket, func(string) string { return "" })
		must(t, err)
		if err := e.Check(t.Context()); !errors.Is(err, sandbox.ErrUnsupported) || !strings.Contains(err.Error(), hint) {
			t.Errorf("API %s: %v, want ErrUnsupported that says %q", api, err, hint)
		}
		must(t, e.Close())
	}
}

func TestCheckKnowsTheIsolation(t *testing.T) {
	info, err := newFakeBed(t).backend.Check(t.Context())
	if err != nil || info.Isolation != sandbox.IsolationNamespaces {
		t.Errorf("%+v, %v", info, err)
	}
}

// A newer engine is spoken to in the newest version that the client knows.
func TestNewerEngineThanTheClient(t *testing.T) {
	b := newFakeBed(t)
	b.engine.api = "1.56" // Moby 29
	if _, err := b.backend.Check(t.Context()); err != nil {
		t.Errorf("check: %v", err)
	}
	if got := b.backend.remote.api; got != "1.51" {
		t.Errorf("it speaks %s", got)
	}
}
