package e2e

import (
	"crypto/sha256"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/caisson-run/caisson/sandbox/sandboxtest"
)

// poisonScript writes into every cache of a sandbox what a tool, or a program of the host, might believe, run or follow. OUT is a directory of the
// host, FIRED a file there.
const poisonScript = `
	for d in ~/.cache/go-build ~/go/pkg/mod ~/.npm ~/.cache/pip ~/.cache/uv ~/.cargo/registry ~/.cargo/git ~/.m2/repository ~/.cache/apt ~/.tool; do
		cd "$d" && printf '#!/bin/sh\ntouch FIRED\n' >run && chmod 755 run && cp run go && cp run x.test || exit 1
		echo "import os; os.system('touch FIRED')" >a.pth
		ln -s OUT out; ln -s OUT/secret file; ln -s ../../../.. up; ln -s . self
		mkdir -p repo/objects repo/refs closed/in; echo 'ref: refs/heads/main' >repo/HEAD; printf '[core]\n\tfsmonitor = touch FIRED\n' >repo/config
		echo '{"scripts": {"install": "touch FIRED"}}' >package.json
		chmod 000 closed
	done; cd /workspace && PYTHONPYCACHEPREFIX=~/.tool python3 forge.py && echo poisoned`

// verdictScript judges the workspace by a tool that believes its cache, as all do, and counts what was planted.
const verdictScript = `PYTHONPYCACHEPREFIX=~/.tool python3 check.py; find ~/.npm ~/.tool ~/.m2 ~/.cache/apt -name run 2>/dev/null | wc -l`

// judged is a workspace that its check fails, and what forges the verdict: compiled code of another source, with the time and the size of the one
// that is there, in the place where Python keeps it.
var judged = map[string]string{
	"work.py":  "def right():\n    return False\n",
	"check.py": "import work\nprint('PASS' if work.right() else 'FAIL')\n",
	"forge.py": `import importlib._bootstrap_external as b, importlib.util as u, os
s = os.stat('work.py')
c = u.cache_from_source(os.path.abspath('work.py'))
os.makedirs(os.path.dirname(c), exist_ok=True)
open(c, 'wb').write(b._code_to_timestamp_pyc(compile('def right(): return True', 'work.py', 'exec'), int(s.st_mtime), s.st_size))
`,
}

// TestPoisonedCaches lets a session write into every cache that it can reach. A later session of another workspace finds none of it, and no
// session with cache_use none, whose verdict about the work is its own. The next session of the same workspace, which uses its caches too, is the
// control: it believes the forged verdict. Nothing of the host is run or followed by listing and removing them, and they belong to the owner of the
// workspace.
func TestPoisonedCaches(t *testing.T) {
	if os.Getuid() != 0 {
		lacking(t, "", "needs root, to be several users")
	}
	const owner = 4242
	backend := anyBackend(t) // the mounts themselves are part of the conformance suite
	if _, err := exec.LookPath("/usr/bin/python3"); err != nil {
		lacking(t, "", "needs python3")
	}
	m := newMachine(t)
	outside := filepath.Join(filepath.Dir(m.home), "outside")
	other := filepath.Join(filepath.Dir(m.home), "other")
	for _, dir := range []string{outside, other} {
		if err := os.Mkdir(dir, 0o777); err != nil {
			t.Fatal(err)
		}
	}
	for name, text := range judged {
		for _, dir := range []string{m.workspace, other} {
			writeFile(t, filepath.Join(dir, name), text, 0o644)
		}
	}
	chownTree(t, m.workspace, owner)
	secret := filepath.Join(outside, "secret")
	writeFile(t, secret, "mine", 0o666)
	shell := func(workspace, script string, args ...string) string {
		t.Helper()
		args = append(args, "--backend", backend, "--workspace", workspace, "--cache", "go,npm,pip,cargo,maven,apt,~/.tool", fmt.Sprintf(`{"command":%q}`, script))
		out := m.run(t, append([]string{"tools", "call", "shell"}, args...)...)
		out.want(t, 0)
		return out.stdout
	}
	planted := strings.NewReplacer("OUT", outside, "FIRED", filepath.Join(outside, "fired"), "\n", "; ", "\t", " ").Replace(strings.TrimSpace(poisonScript))
	planted = strings.ReplaceAll(strings.ReplaceAll(planted, "do; ", "do "), "\\n\\t", "\\n ")
	if got := shell(m.workspace, planted); !strings.Contains(got, "poisoned") {
		t.Fatal(got)
	}
	if got := shell(m.workspace, verdictScript); !strings.Contains(got, "PASS\n") {
		t.Errorf("control: the next session of the workspace finds\n%s", got)
	}
	for name, got := range map[string]string{
		"another workspace": shell(other, verdictScript),
		"cache_use none":    shell(m.workspace, verdictScript, "--cache-use", "none"),
	} {
		if !strings.Contains(got, "FAIL\n0\n") {
			t.Errorf("%s finds\n%s", name, got)
		}
	}
	list := m.run(t, "caches", "ls", "--json")
	list.want(t, 0)
	caches, err := filepath.Glob(filepath.Join(m.stateDir(), "caches", "*", "*go-build"))
	if err != nil || len(caches) != 2 || !strings.Contains(list.stdout, m.workspace) {
		t.Fatalf("%v, %v\n%s", caches, err, list.stdout)
	}
	picture := ""
	for _, dir := range caches {
		picture += strings.Join(strings.Fields(pictureOf(t, filepath.Dir(dir))[filepath.Base(dir)])[:2], " ") + "\n"
	}
	if !strings.Contains(picture, fmt.Sprintf("drwx------ %d:%d", owner, owner)) {
		t.Errorf("owners and modes of caches:\n%s", picture)
	}
	m.run(t, "caches", "rm", "--all").want(t, 0)
	if left, err := filepath.Glob(filepath.Join(m.stateDir(), "caches", "*")); err != nil || len(left) != 1 { // its lock
		t.Errorf("left: %v, %v", left, err)
	}
	if text, err := os.ReadFile(secret); err != nil || string(text) != "mine" {
		t.Errorf("a symlink was followed: %q, %v", text, err)
	}
	if entries, err := os.ReadDir(outside); err != nil || len(entries) != 1 {
		t.Errorf("something was run or written: %v, %v", entries, err)
	}
}

// aptPrograms are what an image needs to install packages.
var aptPrograms = []string{"apt-get", "dpkg", "dpkg-deb", "dpkg-split", "diff", "find", "ldconfig", "rm", "start-stop-daemon", "tar"}

// aptRoot makes a root filesystem with the machine's apt and dpkg, in which nothing is installed.
func aptRoot(t *testing.T, dir string) {
	t.Helper()
	if _, err := exec.LookPath("apt-get"); err != nil {
		lacking(t, "", "needs apt")
	}
	files := userland(t, aptPrograms...)
	of := []string{"/usr/lib/apt/methods/copy", "/usr/lib/apt/methods/store"}
	of = slices.Concat(of, libraries(t, of[0]), libraries(t, of[1]), []string{"/usr/share/dpkg/cputable", "/usr/share/dpkg/ostable", "/usr/share/dpkg/tupletable"})
	for _, name := range of {
		content := readFile(t, name)
		files[strings.TrimPrefix(name, "/")] = content
	}
	for _, name := range []string{"var/lib/dpkg/status", "var/lib/dpkg/info/format", "var/lib/apt/extended_states", "etc/apt/apt.conf.d/none", "etc/apt/preferences.d/none"} {
		files[name] = nil
	}
	files["var/lib/dpkg/info/format"] = []byte("1\n")
	files["etc/apt/sources.list"] = []byte("deb [trusted=yes] copy:/repo ./\n")
	unpackTo(t, files, dir)
	for _, name := range []string{"var/lib/dpkg/updates", "var/lib/dpkg/triggers", "var/log/apt"} {
		if err := os.MkdirAll(filepath.Join(dir, name), 0o755); err != nil {
			t.Fatal(err)
		}
	}
	if err := os.Symlink("../bin", filepath.Join(dir, "usr/bin")); err != nil {
		t.Fatal(err)
	}
}

// aptRepository makes a repository with one package, of one file.
func aptRepository(t *testing.T, dir string) {
	t.Helper()
	source := t.TempDir()
	control := "Package: greeting\nVersion: 1.0\nArchitecture: all\nMaintainer: Nobody <nobody@example.com>\nDescription: a greeting\n"
	unpackTo(t, map[string][]byte{"DEBIAN/control": []byte(control), "opt/greeting": []byte("installed\n")}, source)
	archive := filepath.Join(dir, "greeting_1.0_all.deb")
	err := os.Mkdir(dir, 0o755)
	if err == nil {
		err = exec.CommandContext(t.Context(), "dpkg-deb", "--root-owner-group", "-Znone", "-b", source, archive).Run()
	}
	text, readErr := os.ReadFile(archive)
	if err := errors.Join(err, readErr); err != nil {
		t.Fatal(err)
	}
	list := fmt.Sprintf("%sFilename: ./%s\nSize: %d\nSHA256: %x\n", control, filepath.Base(archive), len(text), sha256.Sum256(text))
	writeFile(t, filepath.Join(dir, "Packages"), list, 0o644)
}

// TestAptCache installs a package of a repository that only the first session can read. What it left in the cache is enough for the next sessions
// of the workspace, whichever way they use it, except with cache_use none, and for no session of another workspace. Root inside can't change the
// file that names the cache to apt.
func TestAptCache(t *testing.T) {
	t.Parallel()
	if _, err := exec.LookPath("dpkg-deb"); err != nil {
		lacking(t, "", "needs dpkg-deb")
	}
	for _, backend := range sandboxtest.Sampled(t, "gvisor", "runc") { // docker has no root inside
		t.Run(backend, func(t *testing.T) {
			needBackend(t, backend)
			t.Parallel()
			m := newMachine(t)
			base := filepath.Dir(m.home)
			root, repository, other := filepath.Join(base, "root"), filepath.Join(base, "repository"), filepath.Join(base, "other")
			aptRoot(t, root)
			aptRepository(t, repository)
			if err := os.Mkdir(other, 0o755); err != nil {
				t.Fatal(err)
			}
			install := func(workspace, before string, args ...string) outcome {
				args = append([]string{"exec", "--backend", backend, "--workspace", workspace, "--image", "rootfs:" + root, "--user", "root", "--writable-root", "--cache", "apt"}, args...)
				return m.run(t, append(args, "--", "sh", "-c", before+"apt-get install -y greeting && cat /opt/greeting")...)
			}
			const update = "apt-get update && "
			first := install(m.workspace, update, "--mount", repository+":/repo:ro")
			first.want(t, 0)
			if !strings.Contains(first.stdout, "installed\n") || !strings.Contains(first.stdout, "Get:1 copy:/repo") {
				t.Fatalf("the first session:\n%s%s", first.stdout, first.stderr)
			}
			const change = "for f in $APT_CONFIG ${APT_CONFIG%/*}/new; do ! echo '#' >$f || exit 3; done; ! rm -rf ${APT_CONFIG%/*} || exit 4; "
			for name, args := range map[string][]string{"writable": nil, "frozen": {"--cache-use", "frozen"}, "overlay": {"--mode", "overlay"}} {
				out := install(m.workspace, change, args...)
				out.want(t, 0)
				if !strings.Contains(out.stdout, "Need to get 0 B/") || !strings.Contains(out.stdout, "installed\n") {
					t.Errorf("%s:\n%s%s", name, out.stdout, out.stderr)
				}
			}
			for name, out := range map[string]outcome{
				"none": install(m.workspace, "", "--cache-use", "none"), "another workspace": install(other, ""), "the repository is gone": install(other, update),
			} {
				if out.status != 100 || strings.Contains(out.stdout, "installed\n") {
					t.Errorf("%s: %d\n%s%s", name, out.status, out.stdout, out.stderr)
				}
			}
			install(m.workspace, "apt-get clean && ", "--cache-use", "frozen")
			if kept, err := filepath.Glob(filepath.Join(m.stateDir(), "caches", "*", "*", "archives", "*.deb")); err != nil || len(kept) != 1 {
				t.Errorf("kept archives: %v, %v", kept, err)
			}
		})
	}
}
