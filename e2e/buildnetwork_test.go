package e2e

import (
	"bytes"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/containerd/errdefs"
	dockerbuild "github.com/docker/docker/api/types/build"
	"github.com/docker/docker/api/types/image"
	"github.com/docker/docker/api/types/network"

	"github.com/caisson-run/caisson/runner/batch"
	"github.com/caisson-run/caisson/runner/buildnetwork"
	"github.com/caisson-run/caisson/runner/sessiondir"
)

// buildWorld has the servers that builds of a test try to reach: an allowed server of this machine, and
// one that only a private address leads to, at which nothing may arrive.
type buildWorld struct {
	base, allowed, forbidden string
	served, hits             atomic.Int64
}

func newBuildWorld(t *testing.T) *buildWorld {
	t.Helper()
	needBackend(t, "docker")
	w := &buildWorld{}
	server := httptest.NewServer(http.HandlerFunc(func(out http.ResponseWriter, _ *http.Request) {
		w.served.Add(1)
		_, _ = io.WriteString(out, "from the network\n")
	}))
	t.Cleanup(server.Close)
	w.allowed = strings.Replace(server.URL, "127.0.0.1", "host.caisson.internal", 1)
	l, err := new(net.ListenConfig).Listen(t.Context(), "tcp", net.JoinHostPort(bridgeAddress(t), "0"))
	if err != nil {
		t.Fatal(err)
	}
	canary := &httptest.Server{Listener: l, Config: &http.Server{Handler: http.HandlerFunc(func(http.ResponseWriter, *http.Request) { w.hits.Add(1) })}}
	canary.Start()
	t.Cleanup(canary.Close)
	w.forbidden = canary.URL
	w.base = engineImage(t, userland(t, "curl", "sleep", "rm", "chmod"), "ENV PATH=/bin")
	return w
}

// bridgeAddress returns this machine's address on the engine's bridge. It is the bridge's
// own: an engine that has just made its bridge knows of no gateway.
func bridgeAddress(t *testing.T) string {
	t.Helper()
	bridge, err := engine(t).NetworkInspect(t.Context(), "bridge", network.InspectOptions{})
	if err != nil {
		t.Fatalf("the engine's bridge: %v", err)
	}
	link, err := net.InterfaceByName(bridge.Options["com.docker.network.bridge.name"])
	var list []net.Addr
	if err == nil {
		list, err = link.Addrs()
	}
	for _, a := range list {
		if ip, ok := a.(*net.IPNet); ok && ip.IP.To4() != nil {
			return ip.IP.String()
		}
	}
	lacking(t, "", fmt.Sprintf("needs the engine's bridge on this machine: %v %v", list, err))
	return ""
}

// builtName returns the name that the engine has for what Caisson builds of a directory,
// which is removed with the test.
func builtName(t *testing.T, dir string) string {
	t.Helper()
	sum := sha256.Sum256([]byte(dir))
	name := "caisson/build:" + hex.EncodeToString(sum[:16])
	t.Cleanup(func() {
		if _, err := engine(t).ImageRemove(context.Background(), name, image.RemoveOptions{PruneChildren: true}); err != nil && !errdefs.IsNotFound(err) {
			t.Errorf("remove %s: %v", name, err)
		}
	})
	return name
}

// config allows builds and commands the one server.
func (w *buildWorld) config(t *testing.T, m *machine) {
	m.config(t, fmt.Sprintf("egress:\n  allow: [\"tcp%s\"]\n  private: {host.caisson.internal: [127.0.0.1]}\n", strings.TrimPrefix(w.allowed, "http")))
}

// attacks is a command of a Dockerfile that tries to reach what it must not: by the proxy
// in its three ways and past it, also under another spelling of the address.
func (w *buildWorld) attacks() string {
	host, port, _ := strings.Cut(strings.TrimPrefix(w.forbidden, "http://"), ":")
	var out strings.Builder
	for _, url := range []string{w.forbidden, "http://[::ffff:" + host + "]:" + port} {
		for _, way := range []string{"", "--noproxy '*'", "-p", "-x socks5h://127.80.0.0:61080", "-x http://127.80.0.7:61080"} {
			fmt.Fprintf(&out, "curl -sS -g -f -m 2 %s '%s' && echo REACHED; ", way, url)
		}
	}
	return "RUN " + out.String() + "true\n"
}

// metadata asks for the credentials of a cloud's machine.
const metadata = "RUN curl -sS -f -m 5 http://169.254.169.254/latest; curl -sS -f -m 5 --noproxy '*' http://169.254.169.254/latest; true\n"

// build builds with caisson, and runs a command on the image.
func (w *buildWorld) build(t *testing.T, m *machine, dockerfile string, args ...string) outcome {
	t.Helper()
	dir := filepath.Join(m.home, "build")
	builtName(t, dir)
	m.writeDockerfile(t, dir, dockerfile)
	return m.run(t, slices.Concat([]string{"exec", "--backend", "docker", "--workspace", m.workspace, "--image", "build:" + dir}, args, []string{"--", "cat", "/file"})...)
}

func (m *machine) writeDockerfile(t *testing.T, dir, text string) {
	t.Helper()
	writeFile(t, filepath.Join(dir, "Dockerfile"), text, 0o644)
}

// plainBuild builds on the engine's own network, without Caisson.
func (w *buildWorld) plainBuild(t *testing.T, dockerfile string) string {
	t.Helper()
	c := engine(t)
	name := fmt.Sprintf("caisson-test/plain:%d", time.Now().UnixNano())
	answer, err := c.ImageBuild(t.Context(), bytes.NewReader(pack(t, map[string][]byte{"Dockerfile": []byte(dockerfile)})), dockerbuild.ImageBuildOptions{
		Version: dockerbuild.BuilderV1, Tags: []string{name}, Remove: true, ForceRemove: true, NetworkMode: "bridge", NoCache: true,
	})
	if err != nil {
		t.Fatal(err)
	}
	text, err := io.ReadAll(answer.Body)
	_ = answer.Body.Close()
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if _, err := c.ImageRemove(context.Background(), name, image.RemoveOptions{PruneChildren: true}); err != nil {
			t.Errorf("remove the control's image: %v", err)
		}
	})
	return string(text)
}

// buildRecords returns the records of all builds below a directory.
func buildRecords(t *testing.T, dir string) string {
	t.Helper()
	files, err := filepath.Glob(filepath.Join(dir, "builds", "*", buildnetwork.RecordsFile))
	if err != nil {
		t.Fatal(err)
	}
	var all []byte
	for _, f := range files {
		text := readFile(t, f)
		all = append(all, text...)
	}
	return string(all)
}

// TestBuildNetwork builds a Dockerfile whose commands reach the allowed server, with the
// proxy and without it, and nothing else. The same commands reach the canary when the
// engine builds them on its own network.
func TestBuildNetwork(t *testing.T) {
	w := newBuildWorld(t)
	text := w.plainBuild(t, "FROM "+w.base+"\n"+w.attacks()+"ADD "+w.forbidden+"/added /added\n")
	if w.hits.Swap(0) < 2 {
		t.Fatalf("control: nothing arrived at the canary:\n%s", text)
	}
	m := newMachine(t)
	w.config(t, m)
	dockerfile := "FROM " + w.base + "\nRUN curl -sS -f -m 20 " + w.allowed + "/a -o /file && curl -sS -f -m 20 --noproxy '*' " + w.allowed + "/b\n" + w.attacks() + metadata +
		"RUN ls /proc > /seen; cat /proc/net/unix >> /seen\n"
	out := w.build(t, m, dockerfile, "--build-network", "public")
	out.want(t, 0)
	if out.stdout != "from the network\n" || w.served.Load() != 2 {
		t.Errorf("%q, served %d times\n%s", out.stdout, w.served.Load(), out.stderr)
	}
	if n := w.hits.Load(); n != 0 || strings.Contains(out.stderr, "REACHED") {
		t.Errorf("the canary was reached %d times:\n%s", n, out.stderr)
	}
	records := buildRecords(t, m.stateDir())
	for _, want := range []string{
		`"kind":"build.network"`, `"allow":["public","tcp://host.caisson.internal:`, `"kind":"network.opened","data":{"tool_use_id":"build","connection":1,"way":"http"`,
		`"way":"capture","host":"host.caisson.internal:`, `"host":"` + strings.TrimPrefix(w.forbidden, "http://") + `","address":`, `"host":"169.254.169.254:80"`, `"reason":"address"`,
	} {
		if !strings.Contains(records, want) {
			t.Errorf("the records lack %s:\n%s", want, records)
		}
	}
	// Nothing of the sandbox whose network it is can be talked to, traced or killed.
	dir := "build:" + filepath.Join(m.home, "build")
	seen := m.run(t, "exec", "--backend", "docker", "--workspace", m.workspace, "--image", dir, "--build-network", "public", "--", "cat", "/seen").stdout
	processes, sockets, _ := strings.Cut(seen, "Num ")
	if list := regexp.MustCompile(`(?m)^\d+$`).FindAllString(processes, -1); len(list) != 2 || strings.Count(sockets, "\n") != 1 {
		t.Errorf("a step sees processes %v and sockets\n%s", list, sockets)
	}
	// The steps are in the engine's cache, and the image has nothing of the network.
	if again := w.build(t, m, dockerfile, "--build-network", "public"); again.stdout != out.stdout || w.served.Load() != 2 {
		t.Errorf("built again: %q, served %d times\n%s", again.stdout, w.served.Load(), again.stderr)
	}
	found, err := engine(t).ImageInspect(t.Context(), builtName(t, filepath.Join(m.home, "build")))
	if err != nil || strings.Contains(fmt.Sprintf("%+v", found.Config), "61080") {
		t.Errorf("the image has the proxy: %+v, %v", found.Config, err)
	}
	m.wantNothingLeft(t)
	m.wantNoRemains(t)
}

// wantNoRemains checks that the state directory has nothing of the sandboxes of builds but
// the log of one that was killed, which a sweep removes a minute later.
func (m *machine) wantNoRemains(t *testing.T) {
	t.Helper()
	kept, err := os.ReadDir(filepath.Join(m.stateDir(), "builds"))
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		t.Fatal(err)
	}
	for _, e := range kept {
		inside, _ := os.ReadDir(sessiondir.Path(m.stateDir(), e.Name()))
		_, workErr := os.Lstat(sessiondir.WorkspacePath(m.stateDir(), e.Name()))
		if len(inside) > 1 || len(inside) == 1 && inside[0].Name() != sessiondir.LogFile || workErr == nil {
			t.Errorf("%s is left with %v, workspace: %v", e.Name(), inside, workErr)
		}
	}
}

// TestBuildNetworkRefused checks what a build without a network, a refused host, and ADD
// of a URL are told.
func TestBuildNetworkRefused(t *testing.T) {
	w := newBuildWorld(t)
	m := newMachine(t)
	w.config(t, m)
	none := w.build(t, m, "FROM "+w.base+"\nRUN curl -sS -f -m 5 "+w.allowed+"\n")
	if none.status == 0 || w.served.Load() != 0 || !strings.Contains(none.stderr, "--build-network public") {
		t.Errorf("without a network: status %d, served %d times\n%s", none.status, w.served.Load(), none.stderr)
	}
	refused := w.build(t, m, "FROM "+w.base+"\nRUN echo before; curl -sS -f -m 5 "+w.forbidden+"\n", "--build-network", "public")
	for _, want := range []string{"the network refused " + strings.TrimPrefix(w.forbidden, "http://") + " (address)", "before | curl: (22)", "Allow the hosts in egress.allow"} {
		if refused.status == 0 || !strings.Contains(refused.stderr, want) {
			t.Errorf("a refused host: status %d without %q\n%s", refused.status, want, refused.stderr)
		}
	}
	trigger := w.plainBuild(t, "FROM "+w.base+"\nONBUILD ADD "+w.forbidden+"/trigger /file\n")
	_, name, ok := strings.Cut(trigger, "Successfully tagged ")
	if !ok {
		t.Fatal(trigger)
	}
	name, _, _ = strings.Cut(name, `\n`)
	for _, dockerfile := range []string{"FROM " + w.base + "\nADD " + w.forbidden + "/added /file\n", "FROM " + name + "\n"} {
		for _, network := range []string{"public", "none"} {
			out := w.build(t, m, dockerfile, "--build-network", network)
			if out.status == 0 || !strings.Contains(out.stderr, "would download past the network rules") {
				t.Errorf("ADD of a URL: status %d\n%s", out.status, out.stderr)
			}
		}
	}
	if n := w.hits.Load(); n != 0 {
		t.Errorf("the canary was reached %d times", n)
	}
	m.wantNothingLeft(t)
	m.wantNoRemains(t)
}

// TestBuildNetworkKilled kills Caisson in the middle of a build: the next command that
// sweeps leaves nothing of it.
func TestBuildNetworkKilled(t *testing.T) {
	w := newBuildWorld(t)
	m := newMachine(t)
	w.config(t, m)
	dir := filepath.Join(m.home, "build")
	builtName(t, dir)
	m.writeDockerfile(t, dir, "FROM "+w.base+"\nRUN curl -sS -f -m 5 "+w.allowed+" && sleep 300\n")
	r := m.start(t, "exec", "--backend", "docker", "--workspace", m.workspace, "--image", "build:"+dir, "--build-network", "public", "--", "true")
	eventually(t, "the build runs", time.Minute, func() bool { return w.served.Load() > 0 })
	sessions, err := filepath.Glob(filepath.Join(m.stateDir(), "builds", "*"))
	if err != nil || len(sessions) != 1 {
		t.Fatalf("%v, %v", sessions, err)
	}
	session := filepath.Base(sessions[0])
	if len(containersOf(t, session)) == 0 {
		t.Error("control: no container of the build's network")
	}
	r.signal(t, syscall.SIGKILL)
	r.wait(t, time.Minute)
	eventually(t, "the engine has no such container any more", time.Minute, func() bool { return len(containersOf(t, session)) == 0 })
	m.run(t, "exec", "--backend", "docker", "--workspace", m.workspace, "--", "true").want(t, 0)
	m.wantNothingLeft(t, session)
	m.wantNoRemains(t)
	eventually(t, "the step's container is gone", time.Minute, func() bool { return len(processesNaming(t, "sleep\x00300")) == 0 })
}

// TestBatchBuildNetwork runs a Harbor task whose Dockerfile needs a network: it has one
// unless the settings refuse it, and a build that fails is a failure of the
// infrastructure.
func TestBatchBuildNetwork(t *testing.T) {
	needBackend(t, "runc")
	t.Parallel()
	w := newBuildWorld(t)
	m := newMachine(t)
	w.config(t, m)
	m.harborTask(t, "hello", w.base, smallTask, "echo hello > hello.txt")
	m.write(t, "tasks/hello/environment/Dockerfile", "FROM "+w.base+"\nWORKDIR /app\nRUN curl -sS -f -m 20 "+w.allowed+" && echo given > given\n")
	args := []string{"--backend", "runc", "--agent", "oracle", "--attempts", "2", "--parallel", "2", "--retries", "0"}
	m.batch(t, append(args, "--build-network", "none")...)
	list, err := batch.ReadResults(m.batchDir("out"))
	if err != nil || len(list) != 2 || list[0].Class != batch.ImageUnavailable || !strings.Contains(list[0].Cause, "curl: (") {
		t.Errorf("without a network: %+v, %v", list, err)
	}
	if err := os.RemoveAll(m.batchDir("out")); err != nil {
		t.Fatal(err)
	}
	m.batch(t, args...).want(t, 0)
	if n := w.served.Load(); n != 1 {
		t.Errorf("built %d times", n)
	}
	if records := buildRecords(t, m.batchDir("out")); !strings.Contains(records, "network.closed") {
		t.Errorf("records of the build: %s", records)
	}
}
