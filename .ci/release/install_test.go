//go:build release

package main

import (
	"bytes"
	"cmp"
	"errors"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"golang.org/x/mod/module"
	"golang.org/x/mod/zip"
)

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
	replace := strings.NewReplacer("{url}", url, "{tar}", r.archive(), "{deb}", r.deb(), "{dir}", strings.TrimSuffix(r.archive(), ".tar.gz")).Replace
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

// TestInstallerRefuses: install.sh says what is missing, and runs nothing if it was cut.
func TestInstallerRefuses(t *testing.T) {
	r := needRelease(t)
	url := serve(t, r.dist)
	text, err := os.ReadFile(filepath.Join(r.dist, "install.sh"))
	repository, errPath := filepath.Abs("../..")
	if err := errors.Join(err, errPath); err != nil {
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
	dir := t.TempDir()
	for to, from := range map[string]string{"install.sh": "../../install.sh", "caisson.asc": filepath.Join(r.dist, "caisson.asc"), "script.yaml": "../../examples/greeting/script.yaml", "task.txt": "../../examples/greeting/task.txt"} {
		text, err := os.ReadFile(from)
		if err == nil {
			err = os.WriteFile(filepath.Join(dir, to), text, 0o644)
		}
		if err != nil {
			t.Fatal(err)
		}
	}
	if err := os.CopyFS(filepath.Join(dir, "workspace"), os.DirFS("../../examples/greeting/workspace")); err != nil {
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
