package docker

import (
	"bytes"
	"context"
	"io"
	"net"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"sync"
	"testing"

	"go.uber.org/zap"

	"github.com/caisson-run/caisson/sandbox"
	"github.com/caisson-run/caisson/sandbox/internal/worktest"
	"github.com/caisson-run/caisson/tools/workspace"
)

// tap relays connections to an engine and keeps what clients send.
type tap struct {
	mu   sync.Mutex
	said bytes.Buffer
}

func (p *tap) Write(b []byte) (int, error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.said.Write(b)
}

func (p *tap) serve(client net.Conn, engine string) {
	defer client.Close()
	up, err := net.Dial("unix", engine)
	if err != nil {
		return
	}
	defer up.Close()
	var wait sync.WaitGroup
	pass := func(to, from net.Conn, also io.Writer) {
		_, _ = io.Copy(io.MultiWriter(to, also), from)
		if c, ok := to.(*net.UnixConn); ok {
			_ = c.CloseWrite()
		}
	}
	wait.Go(func() { pass(up, client, p) })
	wait.Go(func() { pass(client, up, io.Discard) })
	wait.Wait()
}

// calls returns the requests about containers, without their IDs.
func (p *tap) calls() []string {
	p.mu.Lock()
	defer p.mu.Unlock()
	var list []string
	for _, m := range regexp.MustCompile(`(GET|HEAD|POST|PUT|DELETE) /v[0-9.]+(/containers[^ ?]*)[^ ]* HTTP/1\.1\r\n`).FindAllStringSubmatch(p.said.String(), -1) {
		path := regexp.MustCompile(`/containers/[0-9a-f]{12,}`).ReplaceAllString(m[2], "/containers/ID")
		path = regexp.MustCompile(`/containers/caisson-[^/]+`).ReplaceAllString(path, "/containers/ID")
		if call := m[1] + " " + path; !slices.Contains(list, call) {
			list = append(list, call)
		}
	}
	slices.Sort(list)
	return list
}

// The engine is asked for nothing that would unpack an archive in a running
// container, run a second program in it, or start it again (CVE-2018-15664,
// CVE-2026-41567 and their kin).
func TestEngineCalls(t *testing.T) {
	b := newBed(t, os.Geteuid())
	engine := engineSocket(t)
	dir, err := os.MkdirTemp("", "tap") //nolint:usetesting // t.TempDir is too long for a socket
	must(t, err)
	t.Cleanup(func() { os.RemoveAll(dir) })
	socket := filepath.Join(dir, "s")
	l, err := net.Listen("unix", socket)
	must(t, err)
	p := &tap{}
	var serving sync.WaitGroup
	serving.Go(func() {
		for {
			c, err := l.Accept()
			if err != nil {
				return
			}
			serving.Go(func() { p.serve(c, engine) })
		}
	})
	backend, err := New(Options{GuestPath: guestPath(t), StateDir: b.state, Host: "unix://" + socket, Getenv: os.Getenv, Logger: zap.NewNop()})
	must(t, err)
	b.backend = backend
	s, err := backend.Create(t.Context(), b.spec(t, newSession()))
	must(t, err)
	worktest.Shell(t, s, "echo x >file; cat file; exit 3")
	_, err = s.Apply(t.Context(), workspace.Op{Kind: workspace.OpWrite, Path: "a", Content: []byte("x")})
	must(t, err)
	ctx, cancel := context.WithCancel(t.Context())
	sleeping, err := s.Start(ctx, sandbox.Command{Argv: []string{"sleep", "100"}})
	must(t, err)
	cancel()
	_, err = sleeping.Wait()
	must(t, err)
	must(t, s.Destroy(context.Background()))
	_, err = backend.Sweep(t.Context())
	must(t, err)
	backend.Close()
	must(t, l.Close())
	serving.Wait()
	want := []string{
		"DELETE /containers/ID", "GET /containers/ID/json", "GET /containers/json", "POST /containers/ID/attach", "POST /containers/ID/start", "POST /containers/create",
	}
	got := p.calls()
	for _, c := range got {
		if !slices.Contains(want, c) {
			t.Errorf("the engine was asked %s", c)
		}
	}
	for _, c := range want[3:] {
		if !slices.Contains(got, c) {
			t.Errorf("positive control: %s was not seen among %q", c, got)
		}
	}
	t.Log(got)
}
