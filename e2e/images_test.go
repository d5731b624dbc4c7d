package e2e

import (
	"archive/tar"
	"bytes"
	"context"
	"debug/elf"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"log"
	"maps"
	"net/http"
	"net/http/httptest"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/docker/docker/api/types/filters"
	"github.com/docker/docker/api/types/image"
	"github.com/docker/docker/api/types/volume"
	"github.com/google/go-cmp/cmp"
	"github.com/google/go-containerregistry/pkg/name"
	"github.com/google/go-containerregistry/pkg/registry"
	v1 "github.com/google/go-containerregistry/pkg/v1"
	"github.com/google/go-containerregistry/pkg/v1/empty"
	"github.com/google/go-containerregistry/pkg/v1/layout"
	"github.com/google/go-containerregistry/pkg/v1/mutate"
	"github.com/google/go-containerregistry/pkg/v1/remote"
	"github.com/google/go-containerregistry/pkg/v1/tarball"
)

// Images of these tests are made of the machine's own shell and a few programs:
// nothing is downloaded.

// imagePrograms are what an image has.
var imagePrograms = []string{"sh", "cat", "id", "ls", "mkdir", "touch"}

// userland gives the files of a small root filesystem, by their path in it, with
// further programs and their libraries.
func userland(t testing.TB, further ...string) map[string][]byte {
	t.Helper()
	files := map[string][]byte{"marker": []byte("from the image\n"), "data/inside": []byte("of the image\n")}
	add := func(inside, host string) {
		content := readFile(t, host)
		files[strings.TrimPrefix(inside, "/")] = content
	}
	for _, program := range slices.Concat(imagePrograms, further) {
		path, err := exec.LookPath(program)
		if err == nil {
			path, err = filepath.EvalSymlinks(path)
		}
		if err != nil {
			lacking(t, "", "needs "+program+" for a test image")
		}
		add("bin/"+program, path)
		for _, library := range libraries(t, path) {
			add(library, library)
		}
	}
	return files
}

// libraries are those that a program needs, its loader included.
func libraries(t testing.TB, program string) []string {
	t.Helper()
	binary, err := elf.Open(program)
	if err != nil {
		t.Fatal(err)
	}
	defer binary.Close()
	if needed, err := binary.ImportedLibraries(); err == nil && len(needed) == 0 {
		return nil
	}
	out, err := exec.CommandContext(t.Context(), "ldd", program).Output()
	if err != nil {
		lacking(t, "", fmt.Sprintf("needs ldd: %v", err))
	}
	return regexp.MustCompile(`/\S+`).FindAllString(string(out), -1)
}

// without drops files from a root filesystem.
func without(files map[string][]byte, names ...string) map[string][]byte {
	out := map[string][]byte{}
	for name, content := range files {
		if !slices.Contains(names, name) {
			out[name] = content
		}
	}
	return out
}

// pack writes files as a tar archive, always the same way.
func pack(t testing.TB, files map[string][]byte) []byte {
	t.Helper()
	var buffer bytes.Buffer
	w := tar.NewWriter(&buffer)
	for _, name := range slices.Sorted(maps.Keys(files)) {
		if err := w.WriteHeader(&tar.Header{Name: name, Mode: 0o755, Size: int64(len(files[name])), Typeflag: tar.TypeReg}); err != nil {
			t.Fatal(err)
		}
		if _, err := w.Write(files[name]); err != nil {
			t.Fatal(err)
		}
	}
	if err := w.Close(); err != nil {
		t.Fatal(err)
	}
	return buffer.Bytes()
}

// unpackTo writes files below a folder.
func unpackTo(t *testing.T, files map[string][]byte, dir string) {
	t.Helper()
	for name, content := range files {
		path := filepath.Join(dir, name)
		writeFile(t, path, content, 0o755)
	}
}

// imageOf makes an image of files, with a configuration.
func imageOf(t *testing.T, files map[string][]byte, change func(c *v1.ConfigFile)) v1.Image {
	t.Helper()
	content := pack(t, files)
	layer, err := tarball.LayerFromOpener(func() (io.ReadCloser, error) { return io.NopCloser(bytes.NewReader(content)), nil })
	if err != nil {
		t.Fatal(err)
	}
	made, err := mutate.AppendLayers(empty.Image, layer)
	if err != nil {
		t.Fatal(err)
	}
	config, err := made.ConfigFile()
	if err != nil {
		t.Fatal(err)
	}
	config = config.DeepCopy()
	config.OS, config.Architecture = "linux", runtime.GOARCH
	config.Config.Env = []string{"FROM_IMAGE=yes", "PATH=/bin"}
	if change != nil {
		change(config)
	}
	if made, err = mutate.ConfigFile(made, config); err != nil {
		t.Fatal(err)
	}
	return made
}

func digestOf(t *testing.T, i v1.Image) string {
	t.Helper()
	d, err := i.Digest()
	if err != nil {
		t.Fatal(err)
	}
	return d.String()
}

// hub is a registry in the test.
type hub struct {
	host   string
	asked  atomic.Int64 // requests so far
	large  atomic.Int64 // layers that it gave out, which are larger than configurations
	server *httptest.Server
	// stall takes a request and answers nothing; nil takes none. It is set before
	// anybody asks.
	stall func(r *http.Request) bool
}

func newHub(t *testing.T) *hub {
	t.Helper()
	h := &hub{}
	handler := registry.New(registry.Logger(log.New(io.Discard, "", 0))) //nolint:forbidigo // what the registry takes
	h.server = httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		h.asked.Add(1)
		if h.stall != nil && h.stall(r) {
			return
		}
		handler.ServeHTTP(w, r)
		if size, err := strconv.Atoi(w.Header().Get("Content-Length")); err == nil && r.Method == http.MethodGet && size > 64<<10 {
			h.large.Add(1)
		}
	}))
	h.host = strings.Replace(strings.TrimPrefix(h.server.URL, "http://"), "127.0.0.1", "localhost", 1)
	t.Cleanup(h.server.Close)
	return h
}

// push puts an image under a name, such as x:1, and gives the reference.
func (h *hub) push(t *testing.T, tag string, i v1.Image) string {
	t.Helper()
	ref, err := name.NewTag(h.host + "/" + tag)
	if err != nil {
		t.Fatal(err)
	}
	if err := remote.Write(ref, i); err != nil {
		t.Fatal(err)
	}
	return h.host + "/" + tag
}

// looks prints what a session sees of its image.
const looks = `cat /marker; echo "$FROM_IMAGE $HOME"; id -u; (echo x >/marker) 2>/dev/null || echo read-only; touch /tmp/x && echo tmp; mkdir made && touch made/file`

// wantLooks fails the test unless a session saw the image of [userland].
func wantLooks(t *testing.T, backend string, out outcome, env string) {
	t.Helper()
	text := out.records.results(t)[0].text()
	for _, want := range []string{"from the image\n" + env + " /home/agent\n" + commandUID(backend) + "\n", "read-only\n", "tmp\n"} {
		if !strings.Contains(text, want) {
			t.Errorf("the session saw %q, which lacks %q", text, want)
		}
	}
}

// seen returns what a session wrote, without times and without the uid, which
// depends on the backend.
func seen(t *testing.T, backend string, out outcome) string {
	t.Helper()
	_, text, _ := strings.Cut(out.records.results(t)[0].text(), "\n")
	_, text, _ = strings.Cut(text, "\n") // the number of bytes, the uid among them
	return strings.Replace(text, "\n"+commandUID(backend)+"\n", "\nUID\n", 1)
}

// cached returns the images in the machine's store.
func (m *machine) cached(t *testing.T) []struct {
	Reference string `json:"reference"`
	Digest    string `json:"digest"`
	InUse     bool   `json:"in_use"`
} {
	t.Helper()
	out := m.run(t, "images", "ls", "--json")
	out.want(t, 0)
	list := parse[[]struct {
		Reference string `json:"reference"`
		Digest    string `json:"digest"`
		InUse     bool   `json:"in_use"`
	}](t, out.stdout)
	return list
}

// wantStoreIdle fails the test if an image is still in use.
func (m *machine) wantStoreIdle(t *testing.T) {
	t.Helper()
	for _, i := range m.cached(t) {
		if i.InUse {
			t.Errorf("image %s is in use after the end", i.Reference)
		}
	}
}

// engineHolds returns the engine's anonymous volumes and images, which tests must
// leave unchanged. Without an engine it returns none.
func engineHolds(t *testing.T) []string {
	t.Helper()
	if probeBackend(t, "docker") != nil {
		return nil
	}
	c := engine(t)
	var state []string
	list, err := c.VolumeList(t.Context(), volume.ListOptions{})
	if err != nil {
		t.Fatal(err)
	}
	for _, v := range list.Volumes {
		if regexp.MustCompile(`^[0-9a-f]{64}$`).MatchString(v.Name) {
			state = append(state, "volume "+v.Name)
		}
	}
	nameless, err := c.ImageList(t.Context(), image.ListOptions{Filters: filters.NewArgs(filters.Arg("dangling", "true"))})
	if err != nil {
		t.Fatal(err)
	}
	for _, i := range nameless {
		if _, ok := i.Labels["io.caisson.skeleton"]; ok {
			continue // of a test beside this one, which had to make it at the same moment
		}
		state = append(state, "image "+i.ID)
	}
	slices.Sort(state)
	return state
}

// TestImageOfARegistry runs one task on an image of a registry, on each
// backend: the same is seen and done, the manifest's digest is recorded, and the
// second run needs no network.
func TestImageOfARegistry(t *testing.T) {
	hub := newHub(t)
	made := imageOf(t, userland(t), nil)
	ref := hub.push(t, "team/x:1", made)
	var results []string
	var trees []map[string]string
	onEachBackend(t, func(t *testing.T, backend string) {
		before := engineHolds(t)
		m := newMachine(t)
		for _, network := range []bool{true, false} {
			asked := hub.asked.Load()
			out := m.runTask(t, append([]string{"--backend", backend, "--image", ref}, m.playing(t, []scriptCall{shell(looks)})...)...)
			out.want(t, 0)
			wantLooks(t, backend, out, "yes")
			if a := out.records.attestation(t); a.Image != ref || a.Digest != digestOf(t, made) {
				t.Errorf("attested %s %s, want %s %s", a.Image, a.Digest, ref, digestOf(t, made))
			}
			if grew := hub.asked.Load() > asked; grew != network {
				t.Errorf("the registry was asked: %t, want %t", grew, network)
			}
			if told := strings.Contains(out.stderr, "image "+ref+" is there"); told != network {
				t.Errorf("told of the fetching: %t, want %t:\n%s", told, network, out.stderr)
			}
			m.wantNothingLeft(t, out.records[0].Session)
			results, trees = append(results, seen(t, backend, out)), append(trees, treeOf(t, m.workspace))
			if err := os.RemoveAll(filepath.Join(m.workspace, "made")); err != nil {
				t.Fatal(err)
			}
		}
		m.wantStoreIdle(t)
		if diff := cmp.Diff(before, engineHolds(t)); diff != "" {
			t.Errorf("the engine (-before +after):\n%s", diff)
		}
	})
	for i := range results {
		if diff := cmp.Diff(results[0], results[i]); diff != "" {
			t.Errorf("run %d saw another thing (-first +this):\n%s", i, diff)
		}
		if diff := cmp.Diff(trees[0], trees[i]); diff != "" {
			t.Errorf("run %d left another workspace (-first +this):\n%s", i, diff)
		}
	}
}

// TestImageIsPinned moves a tag: runs go on with what it named first, until
// caisson images pull.
func TestImageIsPinned(t *testing.T) {
	backend := anyBackend(t)
	hub, m := newHub(t), newMachine(t)
	first := imageOf(t, userland(t), nil)
	second := imageOf(t, userland(t), func(c *v1.ConfigFile) { c.Config.Env = []string{"FROM_IMAGE=new", "PATH=/bin"} })
	ref := hub.push(t, "x:latest", first)
	run := func(env string, want v1.Image) {
		t.Helper()
		out := m.runTask(t, append([]string{"--backend", backend, "--image", ref}, m.playing(t, []scriptCall{shell(looks)})...)...)
		out.want(t, 0)
		wantLooks(t, backend, out, env)
		if a := out.records.attestation(t); a.Digest != digestOf(t, want) {
			t.Errorf("attested %s, want %s", a.Digest, digestOf(t, want))
		}
		if err := os.RemoveAll(filepath.Join(m.workspace, "made")); err != nil {
			t.Fatal(err)
		}
	}
	run("yes", first)
	hub.push(t, "x:latest", second)
	run("yes", first)
	out := m.run(t, "images", "pull", ref)
	out.want(t, 0)
	if want := ref + " " + digestOf(t, second) + "\n"; out.stdout != want {
		t.Errorf("pull says %q, want %q", out.stdout, want)
	}
	run("new", second)
	out = m.run(t, "images", "prune", "--all")
	out.want(t, 0)
	if list := m.cached(t); len(list) > 0 {
		t.Errorf("left after prune --all: %v", list)
	}
}

// TestImageIsFetchedOnce starts sessions at the same time on an image that
// nobody has yet: one fetches it, the others wait for it.
func TestImageIsFetchedOnce(t *testing.T) {
	backend := anyBackend(t)
	hub, m := newHub(t), newMachine(t)
	ref := hub.push(t, "x:1", imageOf(t, userland(t), nil))
	args := append([]string{"--backend", backend, "--image", ref}, m.playing(t, []scriptCall{shell("cat /marker")})...)
	var runs []*running
	for i := range 4 {
		workspace := filepath.Join(m.home, fmt.Sprint("workspace", i))
		if err := os.Mkdir(workspace, 0o755); err != nil {
			t.Fatal(err)
		}
		runs = append(runs, m.start(t, taskArgs(m, append([]string{"--workspace", workspace}, args...)...)...))
	}
	for _, run := range runs {
		out := run.wait(t, deadline)
		out.want(t, 0)
		if got := readRecords(t, out.stdout).results(t)[0].text(); !strings.Contains(got, "from the image") {
			t.Errorf("a session saw %q", got)
		}
	}
	if n := hub.large.Load(); n != 1 {
		t.Errorf("its one layer was fetched %d times", n)
	}
	m.wantStoreIdle(t)
}

// TestImagePullIsCancelled interrupts a session, and a pull, that wait for a
// registry which sends half a layer: both end at once and leave nothing half made.
func TestImagePullIsCancelled(t *testing.T) {
	backend := anyBackend(t)
	hub, m := newHub(t), newMachine(t)
	ref := hub.push(t, "x:1", imageOf(t, userland(t), nil))
	stalled := make(chan struct{}, 8)
	hub.stall = func(r *http.Request) bool {
		if !strings.Contains(r.URL.Path, "/blobs/") {
			return false
		}
		stalled <- struct{}{}
		<-r.Context().Done()
		return true
	}
	for name, args := range map[string][]string{
		"run":  taskArgs(m, append([]string{"--backend", backend, "--image", ref}, m.playing(t, []scriptCall{shell("touch done")})...)...),
		"pull": {"images", "pull", ref},
	} {
		run := m.start(t, args...)
		<-stalled
		run.signal(t, syscall.SIGINT)
		out := run.wait(t, time.Minute)
		out.want(t, 130)
		if list := m.cached(t); len(list) > 0 && list[0].InUse {
			t.Errorf("%s: in use after the end: %v", name, list)
		}
		if half, err := filepath.Glob(filepath.Join(m.home, ".cache", "caisson", "images", "tmp", "*")); err != nil || len(half) > 0 {
			t.Errorf("%s: half made: %v %v", name, half, err)
		}
	}
	if entries, err := os.ReadDir(m.workspace); err != nil || len(entries) > 0 {
		t.Errorf("in the workspace: %v %v", entries, err)
	}
}

// TestImageInUseStays prunes while a session runs on the image.
func TestImageInUseStays(t *testing.T) {
	backend := anyBackend(t)
	hub, m := newHub(t), newMachine(t)
	ref := hub.push(t, "x:1", imageOf(t, userland(t), nil))
	run := m.start(t, taskArgs(m, append([]string{"--backend", backend, "--image", ref},
		m.playing(t, []scriptCall{shell("touch waiting; while ! [ -e go ]; do ls >/dev/null; done; cat /marker")})...)...)...)
	m.awaitFile(t, run, "waiting")
	out := m.run(t, "images", "prune", "--all")
	out.want(t, 0)
	if !strings.Contains(out.stdout, "kept     "+ref) {
		t.Errorf("prune says: %s", out.stdout)
	}
	if out := m.run(t, "images", "rm", ref); out.status != 1 || !strings.Contains(out.stderr, "in use") {
		t.Errorf("rm of an image in use: status %d\n%s", out.status, out.stderr)
	}
	m.write(t, "go", "")
	end := run.wait(t, deadline)
	end.want(t, 0)
	if got := readRecords(t, end.stdout).results(t)[0].text(); !strings.Contains(got, "from the image") {
		t.Errorf("the session saw %q", got)
	}
	m.run(t, "images", "rm", ref).want(t, 0)
}

// engineImage puts files on the engine as an image and gives its name.
func engineImage(t testing.TB, files map[string][]byte, changes ...string) string {
	t.Helper()
	c := engine(t)
	ref := fmt.Sprintf("caisson-test/e2e:%d", time.Now().UnixNano())
	answer, err := c.ImageImport(t.Context(), image.ImportSource{Source: bytes.NewReader(pack(t, files)), SourceName: "-"}, ref, image.ImportOptions{Changes: changes})
	if err == nil {
		_, err = io.Copy(io.Discard, answer)
	}
	if err != nil {
		t.Fatal(err)
	}
	_ = answer.Close()
	t.Cleanup(func() {
		if _, err := c.ImageRemove(context.Background(), ref, image.RemoveOptions{PruneChildren: true}); err != nil {
			t.Errorf("remove test image: %v", err)
		}
	})
	return ref
}

// TestImageSources runs the same commands on the same files from each source
// that is not a registry, on each backend.
func TestImageSources(t *testing.T) {
	files := userland(t)
	made := imageOf(t, files, nil)
	for source, prepare := range map[string]func(t *testing.T, dir string) (ref, env string){
		"rootfs": func(t *testing.T, dir string) (string, string) {
			unpackTo(t, files, filepath.Join(dir, "root"))
			return "rootfs:root", ""
		},
		"oci-layout": func(t *testing.T, dir string) (string, string) {
			l, err := layout.Write(filepath.Join(dir, "layout"), empty.Index)
			if err == nil {
				err = l.AppendImage(made)
			}
			if err != nil {
				t.Fatal(err)
			}
			return "oci-layout:layout", "yes"
		},
		"docker-archive": func(t *testing.T, dir string) (string, string) {
			tag, err := name.NewTag("example.com/x:1")
			if err == nil {
				err = tarball.WriteToFile(filepath.Join(dir, "x.tar"), tag, made)
			}
			if err != nil {
				t.Fatal(err)
			}
			return "docker-archive:x.tar", "yes"
		},
		"engine": func(t *testing.T, _ string) (string, string) {
			needBackend(t, "docker")
			return engineImage(t, files, "ENV FROM_IMAGE=yes PATH=/bin", "VOLUME /data"), "yes"
		},
		"build": func(t *testing.T, dir string) (string, string) {
			needBackend(t, "docker")
			base := engineImage(t, files, "ENV PATH=/bin")
			builtName(t, filepath.Join(dir, "build"))
			unpackTo(t, map[string][]byte{
				"build/Dockerfile": []byte("FROM " + base + "\nENV FROM_IMAGE=built\nCOPY new /marker\nRUN mkdir /made-by-run\nVOLUME /data\n"),
				"build/new":        []byte("from the image\n"),
			}, dir)
			return "build:build", "built"
		},
	} {
		t.Run(source, func(t *testing.T) {
			onEachBackend(t, func(t *testing.T, backend string) {
				m := newMachine(t)
				ref, env := prepare(t, m.home)
				before := engineHolds(t)
				out := m.runTask(t, append([]string{"--backend", backend, "--image", ref}, m.playing(t, []scriptCall{shell(looks)})...)...)
				out.want(t, 0)
				wantLooks(t, backend, out, env)
				if a := out.records.attestation(t); !strings.HasPrefix(a.Digest, "sha256:") || !strings.HasPrefix(a.Image, strings.SplitN(ref, ":", 2)[0]) {
					t.Errorf("attested %s %s", a.Image, a.Digest)
				}
				m.wantNothingLeft(t, out.records[0].Session)
				m.wantStoreIdle(t)
				if diff := cmp.Diff(before, engineHolds(t)); diff != "" {
					t.Errorf("the engine (-before +after):\n%s", diff)
				}
			})
		})
	}
}

// TestImageConfigurationIsHarmless runs on images whose configuration would do
// something under another runner: none of it does anything here.
func TestImageConfigurationIsHarmless(t *testing.T) {
	hub := newHub(t)
	files := userland(t)
	onEachBackend(t, func(t *testing.T, backend string) {
		for what, change := range map[string]func(c *v1.Config){
			"VOLUME":      func(c *v1.Config) { c.Volumes = map[string]struct{}{"/data": {}, "/var/lib/new/deep": {}, "/tmp": {}} },
			"ENTRYPOINT":  func(c *v1.Config) { c.Entrypoint = []string{"/bin/false"}; c.Cmd = []string{"x"} },
			"HEALTHCHECK": func(c *v1.Config) { c.Healthcheck = &v1.HealthConfig{Test: []string{"CMD", "/bin/false"}, Interval: 1} },
			"USER":        func(c *v1.Config) { c.User = "root"; c.WorkingDir = "/nowhere"; c.OnBuild = []string{"RUN false"} },
			"ENV": func(c *v1.Config) {
				c.Env = append(c.Env, "HOME=/evil", "LD_PRELOAD=/evil.so", "BASH_ENV=/evil", "ENV=/evil")
			},
		} {
			t.Run(what, func(t *testing.T) {
				before := engineHolds(t)
				m := newMachine(t)
				tag := strings.ToLower(what) + ":" + backend
				ref := hub.push(t, tag, imageOf(t, files, func(c *v1.ConfigFile) { change(&c.Config) }))
				command := looks
				if what == "VOLUME" {
					command += `; ls /data; touch /data/x /var/lib/new/deep/x && echo volumes`
				}
				out := m.runTask(t, append([]string{"--backend", backend, "--image", ref}, m.playing(t, []scriptCall{shell(command)})...)...)
				out.want(t, 0)
				wantLooks(t, backend, out, "yes")
				text := out.records.results(t)[0].text()
				if what == "VOLUME" && (!strings.Contains(text, "volumes") || strings.Contains(text, "inside")) {
					t.Errorf("the VOLUMEs are no empty folders that can be written: %q", text)
				}
				m.wantNothingLeft(t, out.records[0].Session)
				if diff := cmp.Diff(before, engineHolds(t)); diff != "" {
					t.Errorf("the engine (-before +after):\n%s", diff)
				}
			})
		}
	})
}

// TestImageFaults names images that can't be used: each is an error of the
// start, soon, with its cause, and leaves nothing.
func TestImageFaults(t *testing.T) {
	hub := newHub(t)
	files := userland(t)
	gone := newHub(t)
	missing := gone.push(t, "x:1", imageOf(t, files, nil))
	gone.server.Close()
	other := map[string]string{"amd64": "arm64", "arm64": "amd64"}[runtime.GOARCH]
	for what, fault := range map[string]struct {
		ref  func(t *testing.T, m *machine) string
		says string
	}{
		"missing offline": {func(*testing.T, *machine) string { return missing }, "network"},
		"missing tag":     {func(*testing.T, *machine) string { return hub.host + "/none:1" }, "none:1"},
		"another architecture": {func(t *testing.T, _ *machine) string {
			return hub.push(t, "arch:1", imageOf(t, files, func(c *v1.ConfigFile) { c.Architecture = other }))
		}, other},
		"no shell": {func(t *testing.T, _ *machine) string {
			return hub.push(t, "noshell:1", imageOf(t, without(files, "bin/sh"), nil))
		}, "/bin/sh"},
		"absent layout": {func(*testing.T, *machine) string { return "oci-layout:absent" }, "absent"},
		"archive of garbage": {func(t *testing.T, m *machine) string {
			unpackTo(t, map[string][]byte{"x.tar": bytes.Repeat([]byte("garbage "), 1000)}, m.home)
			return "docker-archive:x.tar"
		}, "x.tar"},
		"absent Dockerfile": {func(t *testing.T, m *machine) string {
			needBackend(t, "docker")
			unpackTo(t, map[string][]byte{"build/x": nil}, m.home)
			return "build:build"
		}, "Dockerfile"},
		"absent rootfs": {func(*testing.T, *machine) string { return "rootfs:absent" }, "absent"},
	} {
		t.Run(what, func(t *testing.T) {
			onEachBackend(t, func(t *testing.T, backend string) {
				m := newMachine(t)
				ref := fault.ref(t, m)
				before := engineHolds(t)
				begun := time.Now()
				out := m.run(t, taskArgs(m, append([]string{"--backend", backend, "--image", ref}, m.playing(t, []scriptCall{shell("touch done")})...)...)...)
				took := time.Since(begun)
				out.want(t, 44)
				if !strings.Contains(out.stderr, fault.says) {
					t.Errorf("the message does not say %q:\n%s", fault.says, out.stderr)
				}
				if took > time.Minute {
					t.Errorf("it took %s", took)
				}
				if entries, err := os.ReadDir(m.workspace); err != nil || len(entries) > 0 {
					t.Errorf("in the workspace: %v %v", entries, err)
				}
				m.wantNothingLeft(t, readRecords(t, out.stdout)[0].Session)
				m.wantStoreIdle(t)
				if diff := cmp.Diff(before, engineHolds(t)); diff != "" {
					t.Errorf("the engine (-before +after):\n%s", diff)
				}
			})
		})
	}
}

// TestImageVolumeInTheWorkspace runs on an image that declares a VOLUME in the
// workspace: the engine would make a folder there, so its own image is refused;
// the store leaves such a VOLUME out.
func TestImageVolumeInTheWorkspace(t *testing.T) {
	hub := newHub(t)
	files := userland(t)
	onEachBackend(t, func(t *testing.T, backend string) {
		m := newMachine(t)
		ref, status := "", 0
		if backend == "docker" {
			ref, status = engineImage(t, files, "VOLUME /workspace/evil"), 44
		} else {
			ref = hub.push(t, "evil:"+backend, imageOf(t, files, func(c *v1.ConfigFile) { c.Config.Volumes = map[string]struct{}{"/workspace/evil": {}} }))
		}
		out := m.run(t, taskArgs(m, append([]string{"--backend", backend, "--image", ref}, m.playing(t, []scriptCall{shell("ls /workspace")})...)...)...)
		out.want(t, status)
		if status != 0 && !strings.Contains(out.stderr, "/workspace/evil") {
			t.Errorf("the message does not say why:\n%s", out.stderr)
		}
		if entries, err := os.ReadDir(m.workspace); err != nil || len(entries) > 0 {
			t.Errorf("in the workspace: %v %v", entries, err)
		}
		m.wantNothingLeft(t, readRecords(t, out.stdout)[0].Session)
	})
}

// TestImageAsAnOrdinaryUser pulls and runs without root: commands have a name in
// the image, and nothing of the store needs another identity.
func TestImageAsAnOrdinaryUser(t *testing.T) {
	if os.Getuid() != 0 {
		lacking(t, "", "needs root, to become another user")
	}
	hub := newHub(t)
	ref := hub.push(t, "x:1", imageOf(t, userland(t), func(c *v1.ConfigFile) { c.Config.Volumes = map[string]struct{}{"/data": {}} }))
	for _, backend := range []string{"docker", "gvisor"} {
		t.Run(backend, func(t *testing.T) {
			needBackend(t, backend)
			m := newMachine(t)
			if err := os.Chown(m.workspace, ordinary, ordinary); err != nil {
				t.Fatal(err)
			}
			m.become(t, ordinary, ordinary, engineGroups(t, backend)...)
			out := m.runTask(t, append([]string{"--backend", backend, "--image", ref},
				m.playing(t, []scriptCall{shell(`cat /marker; id -un; touch /data/x && echo volume; (echo x >/marker) 2>/dev/null || echo read-only; touch made`)})...)...)
			out.want(t, 0)
			name := map[string]string{"docker": "runner", "gvisor": "agent"}[backend]
			if got, want := out.records.results(t)[0].text(), "from the image\n"+name+"\nvolume\nread-only\n"; !strings.Contains(got, want) {
				t.Errorf("the session saw %q, want %q", got, want)
			}
			m.wantNothingLeft(t, out.records[0].Session)
			m.wantStoreIdle(t)
			m.run(t, "images", "prune", "--all").want(t, 0)
		})
	}
}

// TestImageStoreIsPrivate looks at what the store leaves on the disk: folders
// of the user alone, below the cache folder.
func TestImageStoreIsPrivate(t *testing.T) {
	hub, m := newHub(t), newMachine(t)
	m.run(t, "images", "pull", hub.push(t, "x:1", imageOf(t, userland(t), nil))).want(t, 0)
	dir := filepath.Join(m.home, ".cache", "caisson", "images")
	info, err := os.Stat(dir)
	if err != nil || info.Mode().Perm()&0o077 != 0 {
		t.Fatalf("the store's folder: %v %v", info, err)
	}
	elsewhere, err := filepath.Glob(filepath.Join(m.stateDir(), "images*"))
	if err != nil || len(elsewhere) > 0 {
		t.Errorf("below the state folder: %v %v", elsewhere, err)
	}
	m.run(t, "images", "prune", "--all").want(t, 0)
	left := 0
	err = filepath.WalkDir(dir, func(_ string, e fs.DirEntry, err error) error {
		if err == nil && e.Type().IsRegular() {
			if info, err := e.Info(); err == nil && info.Size() > 4096 {
				left++
			}
		}
		return err
	})
	if err != nil && !errors.Is(err, fs.ErrNotExist) || left > 0 {
		t.Errorf("%d files are left after prune --all: %v", left, err)
	}
}
