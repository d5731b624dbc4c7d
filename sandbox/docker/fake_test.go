package docker

import (
	"encoding/json"
	"fmt"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/docker/docker/api/types"
	"github.com/docker/docker/api/types/container"
	"github.com/docker/docker/api/types/image"
	"github.com/docker/docker/api/types/system"
	"github.com/docker/docker/api/types/volume"

	"github.com/caisson-run/caisson/sandbox"
	"github.com/caisson-run/caisson/sandbox/internal/lifecycle"
)

// fakeEngine speaks the engine's HTTP API on a unix socket. It records
// containers and runs none. Tests replace answers.
type fakeEngine struct {
	socket string
	info   system.Info
	api    string

	mu         sync.Mutex
	containers map[string]*fakeContainer // by id and name
	calls      []string
	answers    map[string]http.HandlerFunc // "POST /containers/create"
	released   chan struct{}               // closed at the end of the test
}

type fakeContainer struct {
	id, name string
	config   container.CreateRequest
	state    container.State
}

func newFakeEngine(t *testing.T) *fakeEngine {
	t.Helper()
	dir, err := os.MkdirTemp("", "caisson-fake-") //nolint:usetesting // t.TempDir is too long for a socket
	must(t, err)
	f := &fakeEngine{
		socket: filepath.Join(dir, "s"), api: "1.41", containers: map[string]*fakeContainer{},
		answers: map[string]http.HandlerFunc{}, released: make(chan struct{}),
		info: system.Info{
			OSType: "linux", Architecture: "x86_64", NCPU: 2, ServerVersion: "20.10.0-fake", SecurityOptions: []string{"name=seccomp,profile=default"},
			MemoryLimit: true, SwapLimit: true, PidsLimit: true, CPUCfsQuota: true, DefaultRuntime: "runc",
			Runtimes: map[string]system.RuntimeWithStatus{"runc": {}, "runsc": {}},
		},
	}
	listener, err := net.Listen("unix", f.socket)
	must(t, err)
	server := &httptest.Server{Listener: listener, Config: &http.Server{Handler: f}}
	server.Start()
	t.Cleanup(func() {
		close(f.released)
		server.Close()
		os.RemoveAll(dir)
	})
	return f
}

// hang leaves a call unanswered until its client cancels it or the test ends.
func (f *fakeEngine) hang(_ http.ResponseWriter, r *http.Request) {
	select {
	case <-r.Context().Done():
	case <-f.released:
	}
}

func answer(status int, v any) http.HandlerFunc {
	return func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("Content-Type", "application/json")
		w.WriteHeader(status)
		json.NewEncoder(w).Encode(v)
	}
}

func failure(status int, text string) http.HandlerFunc {
	return answer(status, map[string]string{"message": text})
}

var (
	apiVersion  = regexp.MustCompile(`^/v[0-9.]+`)
	containerID = regexp.MustCompile(`^/containers/([^/]+)(/[a-z]+)?$`)
	imageName   = regexp.MustCompile(`^/images/(.+)/json$`)
)

// ServeHTTP dispatches on the method and the path without version and ID, such
// as "GET /containers/ID/json".
func (f *fakeEngine) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	path := apiVersion.ReplaceAllString(r.URL.Path, "")
	var id string
	if m := containerID.FindStringSubmatch(path); m != nil && m[1] != "create" && m[1] != "json" {
		id, path = m[1], "/containers/ID"+m[2]
	} else if m := imageName.FindStringSubmatch(path); m != nil {
		path = "/images/NAME/json"
	}
	call := r.Method + " " + path
	f.mu.Lock()
	f.calls = append(f.calls, call)
	custom := f.answers[call]
	f.mu.Unlock()
	w.Header().Set("Api-Version", f.api)
	if custom != nil {
		custom(w, r)
		return
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	f.serve(w, r, call, f.containers[id])
}

func (f *fakeEngine) serve(w http.ResponseWriter, r *http.Request, call string, c *fakeContainer) {
	if c == nil && containerCall.MatchString(call) {
		failure(http.StatusNotFound, "No such container")(w, r)
		return
	}
	switch call {
	case "HEAD /_ping", "GET /_ping":
		w.WriteHeader(http.StatusOK)
	case "GET /info":
		answer(http.StatusOK, f.info)(w, r)
	case "GET /version":
		answer(http.StatusOK, types.Version{Version: f.info.ServerVersion, Components: []types.ComponentVersion{{Name: "runc", Version: "1.1.5"}}})(w, r)
	case "GET /images/NAME/json":
		answer(http.StatusOK, image.InspectResponse{ID: "sha256:00", Os: "linux", Architecture: "amd64"})(w, r)
	case "GET /images/json", "GET /containers/json":
		answer(http.StatusOK, []string{})(w, r)
	case "GET /volumes":
		answer(http.StatusOK, volume.ListResponse{})(w, r)
	case "POST /containers/create":
		f.create(w, r)
	case "POST /containers/ID/start":
		c.state.Running = true
		w.WriteHeader(http.StatusNoContent)
	case "GET /containers/ID/json":
		answer(http.StatusOK, c.inspect())(w, r)
	case "HEAD /containers/ID/archive": // its image is empty
		w.WriteHeader(http.StatusNotFound)
	case "DELETE /containers/ID":
		delete(f.containers, c.id)
		delete(f.containers, c.name)
		w.WriteHeader(http.StatusNoContent)
	default:
		failure(http.StatusNotImplemented, "fake: "+call)(w, r)
	}
}

// takesFrom makes the engine refuse API versions before one, in the words of
// Docker 29.
func (f *fakeEngine) takesFrom(version string) {
	f.api = version
	for _, call := range []string{"GET /info", "GET /version"} {
		f.answers[call] = failure(http.StatusBadRequest, "client version 1.51 is too old. Minimum supported API version is "+version+", please upgrade your client to a newer version")
	}
}

var containerCall = regexp.MustCompile(`^[A-Z]+ /containers/ID`)

func (f *fakeEngine) create(w http.ResponseWriter, r *http.Request) {
	c := &fakeContainer{id: fmt.Sprintf("%064d", len(f.containers)+1), name: r.URL.Query().Get("name")}
	if err := json.NewDecoder(r.Body).Decode(&c.config); err != nil {
		failure(http.StatusBadRequest, err.Error())(w, r)
		return
	}
	f.containers[c.id], f.containers[c.name] = c, c
	answer(http.StatusCreated, container.CreateResponse{ID: c.id})(w, r)
}

func (c *fakeContainer) inspect() container.InspectResponse {
	got := container.InspectResponse{
		ContainerJSONBase: &container.ContainerJSONBase{
			ID: c.id, Name: "/" + c.name, Image: c.config.Image, State: &c.state, HostConfig: c.config.HostConfig,
		},
		Config: c.config.Config,
	}
	for _, m := range c.config.HostConfig.Mounts {
		point := container.MountPoint{Type: m.Type, Source: m.Source, Destination: m.Target, RW: !m.ReadOnly}
		if m.BindOptions != nil {
			point.Propagation = m.BindOptions.Propagation
		}
		got.Mounts = append(got.Mounts, point)
	}
	return got
}

// left returns how many containers the engine still has.
func (f *fakeEngine) left() int {
	f.mu.Lock()
	defer f.mu.Unlock()
	return len(f.containers)
}

func (f *fakeEngine) called(call string) bool {
	f.mu.Lock()
	defer f.mu.Unlock()
	return slices.Contains(f.calls, call)
}

func (f *fakeEngine) hijack(serve func(conn net.Conn)) http.HandlerFunc {
	return func(w http.ResponseWriter, r *http.Request) {
		conn, _, err := http.NewResponseController(w).Hijack()
		if err != nil {
			return
		}
		defer conn.Close()
		fmt.Fprint(conn, "HTTP/1.1 101 UPGRADED\r\nContent-Type: application/vnd.docker.raw-stream\r\nConnection: Upgrade\r\nUpgrade: tcp\r\n\r\n")
		serve(conn)
	}
}

// short is how long a test waits for an answer that never comes.
const short = 50 * time.Millisecond

// shortDeadlines are for an engine that never answers.
func shortDeadlines() deadlines {
	return deadlines{ask: short, attach: short, create: short, start: short, remove: short, load: short, transfer: short, cancel: short, loss: short}
}

func containerOf(s sandbox.Sandbox) *engineContainer {
	return s.(*lifecycle.Sandbox).Container().(*engineContainer)
}
