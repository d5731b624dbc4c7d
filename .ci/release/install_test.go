package main

import (
	"bytes"
	"cmp"
	"crypto/rand"
	"crypto/sha256"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"net/http/httptest"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/ProtonMail/go-crypto/openpgp/clearsign"
	"github.com/google/go-containerregistry/pkg/v1/layout"
	"github.com/google/go-containerregistry/pkg/v1/mutate"
	"golang.org/x/mod/module"
	"golang.org/x/mod/zip"
)

// newcomer is the ordinary user who installs Caisson.
const newcomer = 10001

// testRelease is a release of this machine's architecture, signed by a key of the test, and a bare Debian beside it.
type testRelease struct {
	dist, root string
	key        testKey
}

// released builds the release once.
var released = sync.OnceValues(func() (*testRelease, error) {
	dir, err := os.MkdirTemp("/var/tmp", "caisson-release-") //nolint:usetesting // all tests share it, and TestMain removes it
	if err != nil {
		return nil, err
	}
	cleanups = append(cleanups, func() error { return os.RemoveAll(dir) })
	r := &testRelease{dist: filepath.Join(dir, "dist"), root: filepath.Join(dir, "root")}
	if r.key, err = newTestKey(); err != nil {
		return nil, err
	}
	secret, err := r.key.secret()
	if err != nil {
		return nil, err
	}
	build := exec.Command("sh", "../release.sh")
	build.Env = append(os.Environ(), "DIST="+r.dist, "VERSION=v"+testVersion, "CAISSON_SIGNING_KEY="+secret)
	if out, err := build.CombinedOutput(); err != nil {
		return nil, fmt.Errorf("build a release: %w\n%s", err, out)
	}
	bare := exec.Command("mmdebstrap", "--quiet", "--variant=minbase", "--include=curl,wget,gpg,sqv,busybox", "bookworm", r.root)
	if out, err := bare.CombinedOutput(); err != nil {
		return nil, fmt.Errorf("make a bare Debian: %w\n%s", err, out)
	}
	return r, nil
})

func needRelease(t *testing.T) *testRelease {
	t.Helper()
	if os.Getuid() != 0 {
		t.Skip("needs root, to make root file systems and be several users")
	}
	for _, program := range []string{"mmdebstrap", "runc", "unshare", "setpriv"} {
		if _, err := exec.LookPath(program); err != nil {
			t.Skip("needs " + program)
		}
	}
	r, err := released()
	if err != nil {
		t.Fatal(err)
	}
	return r
}

// archive is the name of the tar.
func (r *testRelease) archive() string {
	return fmt.Sprintf("caisson-%s-linux-%s.tar.gz", testVersion, runtime.GOARCH)
}

// serve serves a directory and returns its address.
func serve(t *testing.T, dir string) string {
	t.Helper()
	s := httptest.NewServer(http.FileServer(http.Dir(dir)))
	t.Cleanup(s.Close)
	return s.URL
}

// place is where somebody installs Caisson: a machine, or a container of a CI job, with a root file system whose
// changes end with it.
type place struct {
	root string
	// job is whether it is a container, in which no namespaces can be made.
	job bool
	// user runs the script, in a home of their own.
	user int
	// files are directories that the place sees.
	files map[string]string
}

// run runs a script there, after another one of root's, and returns what they print.
func (p place) run(t *testing.T, asRoot, script string, env ...string) (string, error) {
	t.Helper()
	dir := t.TempDir()
	// The namespaces end with their first process, and mounts with them.
	const begin = `
mount --make-rprivate /
mount -t tmpfs -o mode=755 place "$1"
cd "$1"
mkdir upper work root
mount -t overlay -o "lowerdir=$2,upperdir=upper,workdir=work" place root
mkdir -p root/home/newcomer root/files
rm -rf root/etc/apt/sources.list root/etc/apt/sources.list.d
mkdir root/etc/apt/sources.list.d
chown 10001:10001 root/home/newcomer
`
	const machine = `
cd root
mount --rbind /dev dev
mount -t proc proc proc
mount -t sysfs -o ro sys sys
mount -t tmpfs -o mode=1777 tmp tmp
mount -t tmpfs run run
mkdir -p old
pivot_root . old # in a chroot nothing can make a user namespace
umount --lazy old
`
	var binds strings.Builder
	for name, from := range p.files {
		fmt.Fprintf(&binds, "mkdir -p root/files/%s\nmount --bind '%s' root/files/%[1]s\n", name, from)
	}
	home := "/home/newcomer"
	if p.user == 0 {
		home = "/root"
	}
	env = append([]string{"PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin", "HOME=" + home, "LANG=C.UTF-8", "TERM=dumb"}, env...)
	text := begin + binds.String()
	if p.job {
		if runtime.GOARCH != "amd64" {
			t.Skip("the seccomp profile is for amd64")
		}
		config, err := json.Marshal(p.container(t, append(env, "SCRIPT="+script), "cd; "+asRoot+"\nexec sh -euc \"$SCRIPT\""))
		if err == nil {
			err = os.WriteFile(filepath.Join(dir, "config.json"), config, 0o600)
		}
		if err != nil {
			t.Fatal(err)
		}
		text += "cp \"$3/config.json\" .\nexec runc --root \"$3/runc\" run caisson-test-" + rand.Text() + "\n"
	} else {
		text += machine + asRoot + "\n" + fmt.Sprintf(`cd %s; exec setpriv --reuid=%d --regid=%[2]d --clear-groups sh -euc "$SCRIPT"`, home, p.user)
	}
	cmd := exec.CommandContext(t.Context(), "unshare", "--mount-proc", "--ipc", "--uts", "--pid", "--fork", "--kill-child", "sh", "-euc", text, "sh", filepath.Join(dir, "place"), p.root, dir)
	cmd.Env = append(env, "SCRIPT="+script)
	if err := os.Mkdir(filepath.Join(dir, "place"), 0o755); err != nil {
		t.Fatal(err)
	}
	out, err := cmd.CombinedOutput()
	return string(out), err
}

// container returns the configuration of a job's container, as Docker makes it: root with Docker's capabilities, or a
// user with none and a read-only root. It has containerd's seccomp profile, and this machine's network.
func (p place) container(t *testing.T, env []string, script string) map[string]any {
	t.Helper()
	dir := t.TempDir()
	if out, err := exec.CommandContext(t.Context(), "runc", "spec", "--bundle", dir).CombinedOutput(); err != nil {
		t.Fatalf("runc spec: %v: %s", err, out)
	}
	var config map[string]any
	var profile any
	text, err := os.ReadFile(filepath.Join(dir, "config.json"))
	if err == nil {
		err = json.Unmarshal(text, &config)
	}
	if err == nil {
		text, err = os.ReadFile("../../e2e/testdata/seccomp-containerd.json")
	}
	if err == nil {
		err = json.Unmarshal(text, &profile)
	}
	if err != nil {
		t.Fatal(err)
	}
	capabilities := []string{}
	if p.user == 0 {
		for _, name := range strings.Fields("CHOWN DAC_OVERRIDE FSETID FOWNER MKNOD NET_RAW SETGID SETUID SETFCAP SETPCAP NET_BIND_SERVICE SYS_CHROOT KILL AUDIT_WRITE") {
			capabilities = append(capabilities, "CAP_"+name)
		}
	}
	process := config["process"].(map[string]any)
	for key, value := range map[string]any{
		"terminal": false, "args": []string{"sh", "-euc", script}, "env": env, "cwd": "/", "noNewPrivileges": p.user != 0,
		"user":         map[string]int{"uid": p.user, "gid": p.user},
		"capabilities": map[string]any{"bounding": capabilities, "effective": capabilities, "permitted": capabilities},
	} {
		process[key] = value
	}
	config["root"] = map[string]any{"path": "root", "readonly": p.user != 0}
	linux := config["linux"].(map[string]any)
	linux["seccomp"] = profile
	linux["namespaces"] = []map[string]string{{"type": "pid"}, {"type": "ipc"}, {"type": "uts"}, {"type": "mount"}}
	if p.user != 0 {
		mount := func(at, mode string) any {
			return map[string]any{"destination": at, "type": "tmpfs", "source": "tmpfs", "options": []string{"nosuid", "mode=" + mode, fmt.Sprintf("uid=%d", p.user)}}
		}
		config["mounts"] = append(config["mounts"].([]any), mount("/tmp", "1777"), mount("/home/newcomer", "755"))
	}
	return config
}

// tryIt is what somebody does who has installed Caisson.
const tryIt = `
mkdir ~/project
cd ~/project
caisson doctor
caisson exec -- sh -c 'id; uname'`

// TestInstall installs a release in each way, on a machine and in containers of CI jobs, by at most three commands, and
// starts a sandbox. It logs how long that takes.
func TestInstall(t *testing.T) {
	r := needRelease(t)
	url := serve(t, r.dist)
	replace := strings.NewReplacer("{url}", url, "{tar}", r.archive(), "{deb}", fmt.Sprintf("caisson_%s_%s.deb", testVersion, runtime.GOARCH), "{dir}", strings.TrimSuffix(r.archive(), ".tar.gz")).Replace
	for name, way := range map[string]struct {
		asRoot, asUser, path string
		once                 bool // on a machine only
	}{
		"install.sh": {asUser: `curl -fsSL {url}/install.sh | CAISSON_URL={url} sh`, path: "$HOME/.local/bin"},
		"install.sh with wget and busybox": {
			once: true, asRoot: `rm /usr/bin/curl`,
			asUser: `wget -q {url}/install.sh
				PREFIX=$HOME/here CAISSON_URL={url} busybox sh install.sh`, path: "$HOME/here/bin",
		},
		"tar": {
			asUser: `curl -fsSL --remote-name-all {url}/{tar} {url}/SHA256SUMS
				sha256sum -c --ignore-missing SHA256SUMS
				tar -xzf {tar}`, path: "$HOME/{dir}",
		},
		"apt": {
			asRoot: `curl -fsSL -o /etc/apt/keyrings/caisson.asc {url}/caisson.asc
				echo "deb [signed-by=/etc/apt/keyrings/caisson.asc] {url}/apt stable main" >/etc/apt/sources.list.d/caisson.list
				apt-get -qq update && apt-get -qq install caisson`,
		},
		"deb": {
			asRoot: `curl -fsSL -o /tmp/caisson.deb {url}/{deb}
				apt-get -qq install /tmp/caisson.deb`, once: true,
		},
	} {
		for where, p := range map[string]place{
			"machine": {user: newcomer}, "container job": {job: true, user: newcomer}, "container job as root": {job: true},
		} {
			if p.job && (way.once || (p.user == 0) != (way.asRoot != "")) {
				continue // a user can't install packages, and the other ways are the same for root
			}
			t.Run(name+" on "+where, func(t *testing.T) {
				t.Parallel()
				p.root = r.root
				asRoot, asUser := replace(way.asRoot), replace(way.asUser)
				if n := len(strings.Split(strings.TrimSpace(cmp.Or(way.asUser, way.asRoot)), "\n")); n > 3 {
					t.Errorf("%d commands", n)
				}
				start := time.Now()
				out, err := p.run(t, asRoot, asUser+"\nPATH="+replace(cmp.Or(way.path, "/none"))+":$PATH\n"+tryIt)
				took := time.Since(start)
				if err != nil || p.job != strings.Contains(out, "ok       sandbox start   gvisor without namespaces") ||
					!strings.Contains(out, "ok       sandbox start") || !strings.Contains(out, "\nuid=10001") || !strings.Contains(out, "\nLinux\n") {
					t.Errorf("%v after %s:\n%s", err, took, out)
				}
				t.Logf("%s", took.Round(time.Second/10))
			})
		}
	}
}

// TestInstallImage uses the image of the release as the one of a CI job.
func TestInstallImage(t *testing.T) {
	r := needRelease(t)
	root := unpackImage(t, filepath.Join(r.dist, "caisson-"+testVersion+"-oci.tar"))
	for _, user := range []int{0, newcomer} {
		out, err := place{root: root, job: true, user: user}.run(t, "", tryIt)
		if err != nil || !strings.Contains(out, "ok       sandbox start") || !strings.Contains(out, "\nuid=10001") {
			t.Errorf("user %d: %v\n%s", user, err, out)
		}
	}
}

// unpackImage unpacks the image of this architecture.
func unpackImage(t *testing.T, file string) string {
	t.Helper()
	dir := t.TempDir()
	if out, err := exec.CommandContext(t.Context(), "tar", "-xf", file, "-C", dir).CombinedOutput(); err != nil {
		t.Fatalf("%v: %s", err, out)
	}
	index, err := layout.ImageIndexFromPath(dir)
	if err != nil {
		t.Fatal(err)
	}
	for { // an index of an index
		manifest, err := index.IndexManifest()
		if err != nil {
			t.Fatal(err)
		}
		first := manifest.Manifests[0]
		if !first.MediaType.IsIndex() {
			image, err := index.Image(first.Digest)
			if err != nil {
				t.Fatal(err)
			}
			files := mutate.Extract(image)
			root := filepath.Join(dir, "root")
			unpack := exec.CommandContext(t.Context(), "tar", "--numeric-owner", "-xpf", "-", "-C", root)
			unpack.Stdin = files
			if err := os.Mkdir(root, 0o755); err != nil {
				t.Fatal(err)
			}
			if out, err := unpack.CombinedOutput(); errors.Join(err, files.Close()) != nil {
				t.Fatalf("%v: %s", err, out)
			}
			return root
		}
		if index, err = index.ImageIndex(first.Digest); err != nil {
			t.Fatal(err)
		}
	}
}

// forgery changes a copy of a release.
type forgery struct {
	name   string
	change func(t *testing.T, dir string, r *testRelease)
	// installer and apt are in what install.sh and apt print when they refuse it. Empty is not refused.
	installer, apt string
	// each is whether each program that verifies is tried, and the action.
	each bool
}

var forgeries = []forgery{
	{"nothing", func(*testing.T, string, *testRelease) {}, "", "", true},
	{"artefact", func(t *testing.T, dir string, r *testRelease) {
		t.Helper()
		edit(t, dir, r.archive(), flipped)
		edit(t, dir, debOf(t, dir), flipped)
	}, "has another checksum", "Hash Sum mismatch", false},
	{"artefact and checksum", func(t *testing.T, dir string, r *testRelease) {
		t.Helper()
		edit(t, dir, r.archive(), flipped)
		resum(t, dir)
		edit(t, dir, "apt/dists/stable/InRelease", func(text []byte) []byte { return bytes.Replace(text, []byte("stable"), []byte("stabel"), 1) })
	}, "not signed by the key", "BADSIG", false},
	{"signature", func(t *testing.T, dir string, _ *testRelease) {
		t.Helper()
		edit(t, dir, "SHA256SUMS.asc", flipped)
		edit(t, dir, "apt/dists/stable/InRelease", flipped)
	}, "not signed by the key", "GPG error", false},
	{"no signature", func(t *testing.T, dir string, _ *testRelease) {
		t.Helper()
		for _, name := range []string{"SHA256SUMS.asc", "apt/dists/stable/InRelease"} {
			if err := os.Remove(filepath.Join(dir, name)); err != nil {
				t.Fatal(err)
			}
		}
	}, "can't be downloaded", "does not have a Release file", false},
	{"signature of another key", func(t *testing.T, dir string, r *testRelease) {
		t.Helper()
		other, err := newTestKey()
		if err != nil {
			t.Fatal(err)
		}
		edit(t, dir, r.archive(), flipped)
		sums := resum(t, dir)
		edit(t, dir, "SHA256SUMS.asc", func([]byte) []byte { return other.detached(t, sums) })
		edit(t, dir, "apt/dists/stable/InRelease", func(text []byte) []byte {
			signed, _ := clearsign.Decode(text)
			return other.clear(t, string(signed.Plaintext))
		})
	}, "not signed by the key", "NO_PUBKEY", true},
	{"another signed text as the signature", func(t *testing.T, dir string, r *testRelease) {
		t.Helper()
		edit(t, dir, r.archive(), flipped)
		resum(t, dir)
		edit(t, dir, "SHA256SUMS.asc", func([]byte) []byte { return r.key.clear(t, "anything") })
	}, "is not one signature", "", false},
	{"another signed message, armored as a signature", func(t *testing.T, dir string, r *testRelease) {
		t.Helper()
		edit(t, dir, r.archive(), flipped)
		resum(t, dir)
		edit(t, dir, "SHA256SUMS.asc", func([]byte) []byte { return r.key.message(t, "anything") })
	}, "not signed by the key", "", true},
	{"an older release", func(t *testing.T, dir string, r *testRelease) {
		t.Helper()
		sums := strings.ReplaceAll(resum(t, dir), testVersion, "0.0.1")
		edit(t, dir, "SHA256SUMS", func([]byte) []byte { return []byte(sums) })
		edit(t, dir, "SHA256SUMS.asc", func([]byte) []byte { return r.key.detached(t, sums) })
	}, "SHA256SUMS has no caisson-", "", false},
}

// flipped returns a text with one byte in the middle changed.
func flipped(text []byte) []byte {
	text = bytes.Clone(text)
	text[len(text)/2] ^= 1
	return text
}

// debOf returns the package in the apt repository.
func debOf(t *testing.T, dir string) string {
	t.Helper()
	var found string
	err := filepath.WalkDir(filepath.Join(dir, "apt", "pool"), func(path string, _ os.DirEntry, err error) error {
		if strings.HasSuffix(path, "_"+runtime.GOARCH+".deb") {
			found = path
		}
		return err
	})
	if err != nil || found == "" {
		t.Fatalf("no package: %v", err)
	}
	name, err := filepath.Rel(dir, found)
	if err != nil {
		t.Fatal(err)
	}
	return name
}

// edit replaces a file, which may be a hard link of the release's.
func edit(t *testing.T, dir, name string, change func([]byte) []byte) {
	t.Helper()
	path := filepath.Join(dir, name)
	text, err := os.ReadFile(path)
	if err == nil {
		err = os.Remove(path)
	}
	if err == nil {
		err = os.WriteFile(path, change(text), 0o644)
	}
	if err != nil {
		t.Fatal(err)
	}
}

// resum writes SHA256SUMS again and returns it.
func resum(t *testing.T, dir string) string {
	t.Helper()
	edit(t, dir, "SHA256SUMS", func(text []byte) []byte {
		var sums strings.Builder
		for line := range strings.Lines(string(text)) {
			name := strings.Fields(line)[1]
			content, err := os.ReadFile(filepath.Join(dir, name))
			if err != nil {
				t.Fatal(err)
			}
			fmt.Fprintf(&sums, "%x  %s\n", sha256.Sum256(content), name)
		}
		return []byte(sums.String())
	})
	text, err := os.ReadFile(filepath.Join(dir, "SHA256SUMS"))
	if err != nil {
		t.Fatal(err)
	}
	return string(text)
}

// forge makes a copy of the release, of hard links where nothing changes.
func (r *testRelease) forge(t *testing.T, f forgery) string {
	t.Helper()
	dir, err := os.MkdirTemp(filepath.Dir(r.dist), "forged-") //nolint:usetesting // hard links need the same file system
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := os.RemoveAll(dir); err != nil {
			t.Error(err)
		}
	})
	if out, err := exec.CommandContext(t.Context(), "cp", "-al", r.dist+"/.", dir).CombinedOutput(); err != nil {
		t.Fatalf("%v: %s", err, out)
	}
	f.change(t, dir, r)
	return dir
}

// TestForgedRelease: install.sh, with each program that verifies, and apt refuse each forged release, and install nothing
// of it. The control is the release itself.
func TestForgedRelease(t *testing.T) {
	r := needRelease(t)
	installer := serve(t, r.dist) // what somebody read before; the mirror is forged
	for _, f := range forgeries {
		t.Run(f.name, func(t *testing.T) {
			t.Parallel()
			url := serve(t, r.forge(t, f))
			check := func(what string, installed bool, out, want string) {
				t.Helper()
				if installed != (want == "") || !strings.Contains(out, want) {
					t.Errorf("%s: installed %v, want %q in\n%s", what, installed, want, out)
				}
			}
			for verifier, remove := range map[string]string{"gpgv": "true", "gpg": "rm /usr/bin/gpgv", "sqv": "rm /usr/bin/gpgv /usr/bin/gpg"} {
				if verifier != "gpgv" && !f.each {
					continue
				}
				out, err := place{root: r.root, user: newcomer}.run(t, remove, fmt.Sprintf(`
					curl -fsS -o install.sh %s/install.sh
					status=0
					CAISSON_URL=%s sh install.sh || status=$?
					find .local -type f
					exit $status`, installer, url))
				check("install.sh with "+verifier, err == nil, out, f.installer)
				if left := strings.Contains(out, "\n.local/"); left != (f.installer == "") {
					t.Errorf("install.sh with %s left files: %v\n%s", verifier, left, out)
				}
			}
			if f.apt == "" && f.installer != "" {
				return // apt has no such file
			}
			out, err := place{root: r.root}.run(t, fmt.Sprintf(`
				curl -fsS -o /etc/apt/keyrings/caisson.asc %s/caisson.asc
				echo "deb [signed-by=/etc/apt/keyrings/caisson.asc] %s/apt stable main" >/etc/apt/sources.list.d/caisson.list
				apt-get update; apt-get -qq install caisson; caisson version`, installer, url), "true")
			check("apt", err == nil, out, f.apt)
		})
	}
}

// TestInstallerRefuses: install.sh says what is missing, and runs nothing if it was cut.
func TestInstallerRefuses(t *testing.T) {
	r := needRelease(t)
	url := serve(t, r.dist)
	text, err := os.ReadFile(filepath.Join(r.dist, "install.sh"))
	if err != nil {
		t.Fatal(err)
	}
	for name, tt := range map[string]struct{ asRoot, script, want string }{
		"no verifier":      {"rm /usr/bin/gpgv /usr/bin/gpg /usr/bin/sqv", "sh install.sh", "Install gpgv"},
		"no downloader":    {"rm /usr/bin/curl", "cp -r /usr/bin bin; rm -f bin/wget; PATH=$PWD/bin sh install.sh", "Install curl or wget."},
		"another machine":  {"", `mkdir bin; printf '#!/bin/sh\necho Linux riscv64\n' >bin/uname; chmod +x bin/uname; PATH=$PWD/bin:$PATH sh install.sh`, "no release for Linux riscv64"},
		"no place":         {"", "PREFIX=/proc/none sh install.sh", "Name a directory with PREFIX=DIR."},
		"no server":        {"", "CAISSON_URL=http://127.0.0.1:9 sh install.sh", "can't be downloaded"},
		"the repository's": {"", "sh /files/repository/install.sh", "this file is not from a release"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			repository := t.TempDir()
			source, err := os.ReadFile("../../install.sh")
			if err == nil {
				err = os.WriteFile(filepath.Join(repository, "install.sh"), source, 0o644)
			}
			if err == nil {
				err = os.Chmod(repository, 0o755)
			}
			if err != nil {
				t.Fatal(err)
			}
			out, err := place{root: r.root, user: newcomer, files: map[string]string{"repository": repository}}.run(t, "curl -fsS -o /home/newcomer/install.sh "+url+"/install.sh\n"+tt.asRoot, "export CAISSON_URL="+url+"\n"+tt.script)
			if err == nil || !strings.Contains(out, tt.want) {
				t.Errorf("%v: %s", err, out)
			}
		})
	}
	dir := t.TempDir()
	for n := 0; n < len(text)-1; n += 97 {
		cut := exec.CommandContext(t.Context(), "sh")
		cut.Stdin, cut.Env = bytes.NewReader(text[:n]), []string{"PATH=" + os.Getenv("PATH"), "HOME=" + dir, "CAISSON_URL=" + url}
		out, _ := cut.CombinedOutput() // it may be a syntax error
		if files, err := os.ReadDir(dir); err != nil || len(files) > 0 {
			t.Fatalf("cut after %d bytes: %v, %v: %s", n, files, err, out)
		}
	}
}

// TestAction runs the scripts of the action as a runner does, in a job's container: it installs a release, and a scripted
// model works in the sandbox. A forged release is not run.
func TestAction(t *testing.T) {
	r := needRelease(t)
	action := readAction(t)
	dir := filepath.Join(filepath.Dir(r.dist), "action")
	if err := os.MkdirAll(dir, 0o755); err != nil {
		t.Fatal(err)
	}
	for to, from := range map[string]string{"install.sh": "../../install.sh", "caisson.asc": filepath.Join(r.dist, "caisson.asc"), "script.yaml": "../../examples/greeting/script.yaml", "task.txt": "../../examples/greeting/task.txt"} {
		text, err := os.ReadFile(from)
		if err == nil {
			err = os.WriteFile(filepath.Join(dir, to), text, 0o644)
		}
		if err != nil {
			t.Fatal(err)
		}
	}
	if err := os.CopyFS(filepath.Join(dir, "workspace"), os.DirFS("../../examples/greeting/workspace")); err != nil && !errors.Is(err, os.ErrExist) {
		t.Fatal(err)
	}
	for _, f := range forgeries {
		if !f.each {
			continue
		}
		t.Run(f.name, func(t *testing.T) {
			t.Parallel()
			inputs := map[string]string{
				"url": serve(t, r.forge(t, f)), "version": testVersion, "task-file": "/files/action/task.txt", "model": "replay//files/action/script.yaml",
				"workspace": "/github/workspace", "verify": "sh test.sh",
			}
			out, err := place{root: r.root, job: true, files: map[string]string{"action": dir}}.run(t, "", `
				mkdir -p /github/home /__w/_temp
				cp -r /files/action/workspace /github/workspace
				chown -R 1001 /github/home /__w
				export HOME=/github/home RUNNER_TEMP=/__w/_temp GITHUB_ACTION_PATH=/files/action GITHUB_OUTPUT=/tmp/outputs GITHUB_ACTIONS=true
				cd /github/workspace
				`+action.script(t, inputs)+`
				cat /tmp/outputs; ls /__w/_temp/caisson-results; cat /__w/_temp/caisson-results/changes.patch`)
			if f.installer != "" {
				if err == nil || !strings.Contains(out, f.installer) || strings.Contains(out, "session") {
					t.Errorf("%v: %s", err, out)
				}
				return
			}
			for _, want := range []string{"\nreason<<", "\nanswered\n", "results=/__w/_temp/caisson-results\n", "answer.md\nchanges.patch\njunit.xml\nrecords.tar\n", "+++ b/"} {
				if err != nil || !strings.Contains(out, want) {
					t.Fatalf("%v, want %q: %s", err, want, out)
				}
			}
		})
	}
}

// TestGoInstall: `go install` accepts the module as it would be published. It builds nothing.
func TestGoInstall(t *testing.T) {
	t.Parallel()
	const name, version = "github.com/caisson-run/caisson", "v0.98.7"
	dir := t.TempDir()
	proxy := filepath.Join(dir, name, "@v")
	mod, err := os.ReadFile("../../go.mod")
	if err == nil {
		err = os.MkdirAll(proxy, 0o755)
	}
	source := filepath.Join(dir, "source")
	archive := exec.CommandContext(t.Context(), "sh", "-euc", `mkdir "$1"; git -C ../.. archive HEAD | tar -x -C "$1"`, "sh", source)
	if out, err := archive.CombinedOutput(); err != nil {
		t.Fatalf("%v: %s", err, out)
	}
	var packed bytes.Buffer
	if err == nil {
		err = zip.CreateFromDir(&packed, module.Version{Path: name, Version: version}, source)
	}
	for name, text := range map[string][]byte{
		"list": []byte(version + "\n"), version + ".info": []byte(`{"Version":"` + version + `"}`), version + ".mod": mod, version + ".zip": packed.Bytes(),
	} {
		err = errors.Join(err, os.WriteFile(filepath.Join(proxy, name), text, 0o644))
	}
	have, errHave := exec.CommandContext(t.Context(), "go", "env", "GOMODCACHE", "GOPROXY").Output()
	if err := errors.Join(err, errHave); err != nil {
		t.Fatal(err)
	}
	cache, others, _ := strings.Cut(strings.TrimSpace(string(have)), "\n")
	install := exec.CommandContext(t.Context(), "go", "install", "-n", name+"/cmd/...@"+version)
	install.Dir = dir
	install.Env = append(os.Environ(), "GOPROXY=file://"+dir+",file://"+cache+"/cache/download,"+others, "GOSUMDB=off", "GOMODCACHE="+dir+"/cache", "GOFLAGS=-modcacherw", "GOBIN="+dir+"/bin")
	out, err := install.CombinedOutput()
	for _, program := range []string{"caisson", "caisson-guest"} {
		if err != nil || !strings.Contains(string(out), dir+"/bin/"+program+"\n") {
			t.Errorf("%s: %v: %s", program, err, out[max(0, len(out)-2000):])
		}
	}
}
