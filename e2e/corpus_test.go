//go:build corpus

package e2e

import (
	"encoding/json"
	"fmt"
	"os"
	"os/exec"
	"path"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
	"time"
)

// TestCorpus builds the tasks of other people's evaluations, and on each backend
// runs their tests in their own images: where the image's WORKDIR is, as its
// USER, with a writable root. It is behind a build tag and not skipped, since it
// needs CAISSON_CORPUS; see docs/internal/corpus.md.
func TestCorpus(t *testing.T) {
	dir := os.Getenv("CAISSON_CORPUS")
	if dir == "" {
		t.Fatal("CAISSON_CORPUS names no directory: run make corpus")
	}
	for _, task := range readCorpus(t) {
		t.Run(task.Name, func(t *testing.T) {
			image := task.build(t, dir)
			onEachBackend(t, func(t *testing.T, backend string) { task.run(t, dir, image, backend) })
		})
	}
}

// runDocker runs the engine's command and returns its output.
func runDocker(t *testing.T, args ...string) string {
	t.Helper()
	out, err := exec.CommandContext(t.Context(), "docker", args...).CombinedOutput()
	if err != nil {
		t.Fatalf("docker %s: %v\n%s", strings.Join(args, " "), err, out)
	}
	return strings.TrimSpace(string(out))
}

// build builds the image of a task, over base images that are made of Debian's
// packages, and returns its name.
func (c corpusTask) build(t *testing.T, dir string) string {
	t.Helper()
	for name, file := range c.Base {
		runDocker(t, "build", "--quiet", "--tag", name, "--file", filepath.Join("testdata", "corpus", file), filepath.Join("testdata", "corpus"))
	}
	name := "caisson-corpus/" + c.Name
	runDocker(t, "build", "--quiet", "--tag", name, filepath.Join(dir, c.Name))
	if user := runDocker(t, "image", "inspect", "--format", "{{.Config.User}}", name); user != c.User && (user != "" || c.User != "root") {
		t.Errorf("the image's USER is %q, not %q", user, c.User)
	}
	return name
}

// copyWorkdir copies the files of an image's WORKDIR, and those of the task that
// its harness brings, into the workspace.
func (c corpusTask) copyWorkdir(t *testing.T, m *machine, dir, image string) {
	t.Helper()
	m.start(t, "images", "export", image, m.workspace).wait(t, taskTime).want(t, 0)
	for _, name := range c.Copies {
		m.write(t, path.Base(name), string(readFile(t, filepath.Join(dir, c.Name, name))))
	}
}

// taskTime bounds one run: thousands of forks of one task take minutes in gVisor
// on a loaded machine.
const taskTime = 10 * time.Minute

// run runs the tests of a task on one backend, twice: the second sandbox finds
// nothing of the first. Commands have the user and the group that the engine gives
// the image's USER. Where that is root and the backend has no root inside, they are
// 10001.
func (c corpusTask) run(t *testing.T, dir, image, backend string) {
	m := newMachine(t)
	c.copyWorkdir(t, m, dir, image)
	reference, user := image, "image"
	id := runDocker(t, "run", "--rm", "--network", "none", "--entrypoint", "/bin/sh", image, "-c", "id -u; id -g")
	if !c.Network && backend != "docker" {
		reference = "build:" + filepath.Join(dir, c.Name) // the same steps, from the engine's cache
	}
	if c.User == "root" {
		user = "root"
		if backend == "docker" {
			user, id = "owner", "10001\n10001"
		}
	}
	const scar = "/opt/caisson-corpus"
	script := fmt.Sprintf("set -e; id -u; id -g; pwd; ls -d %s; test ! -e %s; if [ $(id -u) = 0 ]; then touch %[2]s; fi; %s", strings.Join(c.Finds, " "), scar, c.Command)
	for range 2 {
		out := m.start(
			t, "tools", "call", "--workspace", m.workspace, "--backend", backend, "--image", reference, "--writable-root", "--user", user,
			"--workdir", "image", "--policy", "sandboxed", "shell", marshalCommand(t, script),
		).wait(t, taskTime)
		out.want(t, 0)
		if want := id + "\n" + c.Workdir + "\n" + strings.Join(c.Finds, "\n") + "\n"; !strings.Contains(out.stdout, want) {
			t.Errorf("it begins with %.300q, want %q", out.stdout, want)
		}
		if !regexp.MustCompile(c.Want).MatchString(out.stdout) {
			t.Errorf("its tests print %q, want %s", out.stdout, c.Want)
		}
	}
	m.wantNothingLeft(t)
}

func marshalCommand(t *testing.T, script string) string {
	t.Helper()
	text, err := json.Marshal(map[string]string{"command": script})
	if err != nil {
		t.Fatal(err)
	}
	return string(text)
}
