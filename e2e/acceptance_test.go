package e2e

import (
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
)

// TestSecretsStayOut is acceptance case D49: a run whose surroundings are full
// of secrets, and whose agent looks for them in every way. None may be in a
// tool's result, the transcript, the event stream, the log or the report. Each
// probe finds its secret on the host, and the secrets that the workspace itself
// holds are there, redacted.
func TestSecretsStayOut(t *testing.T) {
	onBackendsAtOnce(t, func(t *testing.T, backend string) {
		m := newMachine(t)
		canaries := map[string]string{}
		canary := func(name string) string {
			canaries[name] = secret()
			return canaries[name]
		}
		for _, name := range []string{"OPENAI_API_KEY", "ANTHROPIC_API_KEY", "GITHUB_TOKEN", "AWS_SECRET_ACCESS_KEY", "SERVICE_PASSWORD", "JUST_A_SETTING"} {
			m.env = append(m.env, name+"="+canary(name))
		}
		// What others left: a key of the user's, another session's records, stored answers.
		var planted []string
		plant := func(path string) string {
			planted = append(planted, path)
			if err := errors.Join(os.MkdirAll(filepath.Dir(path), 0o700), os.WriteFile(path, []byte(canary(path)+"\n"), 0o600)); err != nil {
				t.Fatal(err)
			}
			return path
		}
		files := []string{
			plant(filepath.Join(m.home, ".ssh", "id_canary")),
			plant(filepath.Join(m.home, ".config", "other", "token")),
			plant(filepath.Join(m.stateDir(), "sessions", "ses_01ARZ3NDEKTSV4RRFFQ69G5FAV", "canary.txt")),
		}
		key := canaries["OPENAI_API_KEY"]
		m.write(t, ".env", "# settings\nOPENAI_API_KEY="+key+"\n")
		m.write(t, "notes.txt", "the key is "+key+", keep it\n")

		type probe struct{ command, found string }
		probes := []probe{
			{"env", key},
			{"cat /proc/*/environ 2>/dev/null | tr '\\0' '\\n'", canaries["JUST_A_SETTING"]},
			{"find / -maxdepth 3 -name id_canary 2>/dev/null; ls ../home/.ssh 2>/dev/null", "id_canary"},
			{"grep -rsl '[0-9a-f]\\{64\\}' " + m.home + "; ls -la /; mount; echo done; ls " + m.home + "/.ssh", "id_canary"},
		}
		for _, f := range files {
			probes = append(probes, probe{"cat " + f, canaries[f]})
		}
		var outside, inside []scriptCall
		for _, p := range probes {
			onHost(t, m, p.command, p.found)
			outside = append(outside, shell(p.command))
		}
		outside = append(outside, shell("cat /proc/*/cmdline 2>/dev/null | tr '\\0' ' '"))
		for _, f := range append(files, "/proc/self/environ", "/proc/1/environ", m.stateDir()) {
			outside = append(outside, call("read_file", map[string]any{"path": f}), call("list_dir", map[string]any{"path": f}),
				call("grep", map[string]any{"pattern": "[0-9a-f]{64}", "path": f}))
		}
		inside = append(inside, call("read_file", map[string]any{"path": ".env"}), shell("cat .env notes.txt; base64 notes.txt"),
			call("grep", map[string]any{"pattern": "key is"}), call("patch_file", map[string]any{"path": "notes.txt", "old": "keep it", "new": key}))
		out := m.runTask(t, append([]string{"--backend", backend}, m.playing(t, outside, inside)...)...)
		out.want(t, 0)

		results := out.records.results(t)
		if len(results) != len(outside)+len(inside) {
			t.Fatalf("%d results for %d calls", len(results), len(outside)+len(inside))
		}
		for i, r := range results[:len(outside)] {
			if found := "id_canary"; i < len(probes) && strings.Contains(r.text(), found) && probes[i].found == found && !strings.Contains(r.text(), "cannot access") {
				t.Errorf("%s finds %s: %.300s", probes[i].command, found, r.text())
			}
			if c := outside[i]; strings.Contains(fmt.Sprint(c.Input["command"]), "cmdline") && strings.Contains(r.text(), m.home) {
				t.Errorf("a command line of the host is seen: %.600s", r.text())
			}
		}
		// The control of the redaction: the files were read, and the secret stood there.
		for i, want := range []string{"# settings\nOPENAI_API_KEY=", "the key is ", "the key is "} {
			if text := results[len(outside)+i].text(); !strings.Contains(text, want) {
				t.Errorf("control: %v was not read: %.300s", inside[i].Input, text)
			}
		}
		where := map[string]string{"standard output": out.stdout, "standard error": out.stderr}
		maps.Copy(where, treeOf(t, m.home))
		for _, path := range planted {
			rel, err := filepath.Rel(m.home, path)
			if err != nil {
				t.Fatal(err)
			}
			if !strings.Contains(where[rel], canaries[path]) {
				t.Errorf("control: the search does not see %s: it sees %q", rel, slices.Sorted(maps.Keys(where)))
			}
			delete(where, rel)
		}
		for name, text := range where {
			for of, value := range canaries {
				if strings.Contains(text, value) {
					t.Errorf("%s has the secret of %s", name, of)
				}
			}
		}
		for _, kind := range []string{"trace.jsonl", "log.jsonl", "report.json"} {
			if !slices.ContainsFunc(slices.Collect(maps.Keys(where)), func(name string) bool { return filepath.Base(name) == kind }) {
				t.Errorf("control: no %s was searched", kind)
			}
		}
	})
}

// poison is what one command can try to leave to the next.
const poison = `export PATH=/workspace/bin:$PATH BASH_ENV=/workspace/evil ENV=/workspace/evil LD_PRELOAD=/workspace/x.so POISON=poisoned
alias ls='echo poisoned'; ls() { echo poisoned; }; export -f ls
cd "${TMPDIR:-/tmp}"; umask 000
for f in .bashrc .profile .bash_profile .bash_login; do echo 'POISON=poisoned' >>"$HOME/$f"; done 2>/dev/null
echo 'POISON=poisoned' >evil
`

// inspect shows what a command finds.
const inspect = `echo "found $POISON $BASH_ENV $ENV $LD_PRELOAD in $PWD, mask $(umask)"; case $PATH in */workspace/bin*) echo poisoned;; esac; ls f`

// TestCommandsKnowNothingOfOneAnother is acceptance case C41, and A12 from the
// inside: a command finds nothing of what the one before set, and no file can be
// linked across the workspace's edge.
func TestCommandsKnowNothingOfOneAnother(t *testing.T) {
	onBackendsAtOnce(t, func(t *testing.T, backend string) {
		m := newMachine(t)
		m.write(t, "f", "x")
		control := exec.CommandContext(t.Context(), "bash", "-c", poison+inspect)
		control.Dir, control.Env = t.TempDir(), append(slices.Clone(m.env), "HOME="+t.TempDir(), "TMPDIR="+t.TempDir())
		if text, _ := control.CombinedOutput(); strings.Count(string(text), "poisoned") < 3 {
			t.Fatalf("control: in one shell nothing is poisoned: %s", text)
		}
		out := m.runTask(t, append([]string{"--backend", backend}, m.playing(t,
			[]scriptCall{shell(poison + "echo set: $POISON")},
			[]scriptCall{shell(inspect)},
			[]scriptCall{shell("ln f g && echo linked inside; ln f /tmp/f; ln f \"$HOME/f\"; ln /etc/passwd p; true")},
		)...)...)
		out.want(t, 0)
		results := out.records.results(t)
		if !strings.Contains(results[0].text(), "set: poisoned") {
			t.Errorf("control: the first command did not set anything: %s", results[0].text())
		}
		if text := results[1].text(); strings.Contains(text, "poisoned") || !strings.Contains(text, " in /workspace, mask 0022\nf\n") {
			t.Errorf("the second command finds %s", text)
		}
		if text := results[2].text(); !strings.Contains(text, "linked inside") || strings.Count(text, "cross-device link") != 3 {
			t.Errorf("links across the edge: %s", text)
		}
	})
}

// TestTheHostRunsNothingOfTheWorkspace is acceptance cases B25, B26, B28 and
// B31: whatever a workspace holds that a host could run or obey (monitors, hooks
// and filters of git, repositories that lie elsewhere, programs that are named
// like ours, settings), Caisson started in it, with the current folder on PATH,
// runs none of it and connects to nowhere: not when a session begins, nor while
// it runs, nor for diff, apply and doctor. The control is the same workspace and
// a shell.
func TestTheHostRunsNothingOfTheWorkspace(t *testing.T) {
	t.Parallel()
	git, err := exec.LookPath("git")
	if err != nil {
		lacking(t, "", "needs git")
	}
	for _, c := range []struct{ backend, mode string }{{"docker", "bind"}, {"gvisor", "overlay"}, {"runc", "bind"}} {
		t.Run(c.backend+" "+c.mode, func(t *testing.T) {
			t.Parallel()
			needBackend(t, c.backend)
			m := newMachine(t)
			fired := filepath.Join(filepath.Dir(m.home), "fired")
			if err := os.Mkdir(fired, 0o777); err != nil {
				t.Fatal(err)
			}
			listener, port := countingListener(t)
			for i, value := range m.env {
				if strings.HasPrefix(value, "PATH=") {
					m.env[i] = "PATH=.::" + hostPath
				}
			}
			plantTraps(t, m, git, fired, port)
			caisson := func(args ...string) outcome {
				t.Helper()
				run := exec.CommandContext(t.Context(), filepath.Join(binaries(t), "caisson"), args...)
				run.Dir, run.Env = m.workspace, m.env
				stdout, stderr := new(follower), new(follower)
				run.Stdout, run.Stderr = stdout, stderr
				err := run.Run()
				if exit := (*exec.ExitError)(nil); err != nil && !errors.As(err, &exit) {
					t.Fatal(err)
				}
				return outcome{status: run.ProcessState.ExitCode(), stdout: stdout.String(), stderr: stderr.String()}
			}
			script := m.playing(t, []scriptCall{
				call("read_file", map[string]any{"path": ".env"}), call("list_dir", map[string]any{"path": "."}), call("grep", map[string]any{"pattern": "gitdir"}),
				call("write_file", map[string]any{"path": "new", "content": "x\n"}), call("patch_file", map[string]any{"path": "README.md", "old": "nothing", "new": "something"}),
				shell("git status; git add README.md; git commit -qm x; echo changed >>README.md; sh -c true; true"),
			})
			out := caisson(append([]string{"run", "--workspace", ".", "--policy", "ci", "--json", "--backend", c.backend, "--mode", c.mode}, script...)...)
			out.want(t, 0)
			session := readRecords(t, out.stdout)[0].Session
			if c.mode == "overlay" {
				diff := caisson("diff")
				if diff.status != 0 || !strings.Contains(diff.stdout, "README.md") {
					t.Errorf("diff: %d %s%s", diff.status, diff.stdout, diff.stderr)
				}
				if apply := caisson("apply"); apply.status != 0 {
					t.Errorf("apply: %d %s%s", apply.status, apply.stdout, apply.stderr)
				}
			}
			caisson("doctor")
			caisson("sandbox", "gc")
			if text, err := os.ReadFile(filepath.Join(m.workspace, "README.md")); err != nil || !strings.Contains(string(text), "changed") {
				t.Errorf("the session did nothing: %q, %v", text, err)
			}
			if names := namesIn(t, fired); len(names) > 0 {
				t.Errorf("the host ran %q", names)
			}
			if n := listener.Load(); n != 0 {
				t.Errorf("%d connections were made to where the workspace's settings lead", n)
			}
			m.wantNothingLeft(t, session)

			// The control: who uses git and its programs by their names, here.
			for _, command := range []string{
				"git status", git + " status", git + " -C pointer status", git + " -C linked status", git + " -C bare.git status", git + " diff",
				git + " -c core.fsmonitor=false commit --allow-empty -qm x", "rg x", "docker ps", "runc list",
			} {
				control := exec.CommandContext(t.Context(), "/bin/sh", "-c", command)
				control.Dir, control.Env = m.workspace, m.env
				_ = control.Run()
			}
			want := []string{"fsmonitor", "fsmonitor-bare", "fsmonitor-linked", "fsmonitor-pointer", "hook-pre-commit", "program-docker", "program-git", "program-rg", "program-runc"}
			got := namesIn(t, fired)
			for _, name := range want {
				if !slices.Contains(got, name) {
					t.Errorf("control: %s did not fire; what fired is %q", name, got)
				}
			}
		})
	}
}

func namesIn(t *testing.T, dir string) []string {
	t.Helper()
	entries, err := os.ReadDir(dir)
	if err != nil {
		t.Fatal(err)
	}
	var names []string
	for _, e := range entries {
		names = append(names, e.Name())
	}
	return names
}

// plantTraps fills a workspace with what a host could run. Each trap leaves a
// file of its name in fired.
func plantTraps(t *testing.T, m *machine, git, fired string, port int) {
	t.Helper()
	trap := func(name string) string { return "/usr/bin/touch " + filepath.Join(fired, name) }
	program := func(path, name string) {
		m.write(t, path, "#!/bin/sh\n"+trap(name)+"\nexit 1\n")
		if err := os.Chmod(filepath.Join(m.workspace, path), 0o755); err != nil {
			t.Fatal(err)
		}
	}
	m.write(t, "README.md", "nothing\n")
	m.write(t, ".gitattributes", "* diff=trap filter=trap\n")
	run := func(args ...string) {
		t.Helper()
		cmd := exec.CommandContext(t.Context(), git, args...)
		cmd.Dir = m.workspace
		cmd.Env = []string{"PATH=" + hostPath, "HOME=" + m.home, "GIT_AUTHOR_NAME=t", "GIT_AUTHOR_EMAIL=t@example.com", "GIT_COMMITTER_NAME=t", "GIT_COMMITTER_EMAIL=t@example.com"}
		if out, err := cmd.CombinedOutput(); err != nil {
			t.Fatalf("git %q: %v %s", args, err, out)
		}
	}
	repository := func(dir, name string) {
		run("init", "-q", dir)
		run("-C", dir, "config", "user.name", "t")
		run("-C", dir, "config", "user.email", "t@example.com")
		run("-C", dir, "commit", "-q", "--allow-empty", "-m", "first")
		run("-C", dir, "config", "core.fsmonitor", trap(name)+"; false")
	}
	repository(".", "fsmonitor")
	for key, value := range map[string]string{
		"core.pager": trap("pager"), "core.sshCommand": trap("ssh"), "diff.external": trap("diff"), "diff.trap.textconv": trap("textconv"),
		"filter.trap.clean": trap("clean") + "; cat", "filter.trap.smudge": trap("smudge") + "; cat", "core.hooksPath": "h", "alias.status": "!" + trap("alias"),
	} {
		run("config", key, value)
	}
	for _, hook := range []string{"post-checkout", "pre-commit", "post-index-change", "reference-transaction", "fsmonitor-watchman", "post-commit"} {
		program("h/"+hook, "hook-"+hook)
		program(".git/hooks/"+hook, "hook-in-git-"+hook)
	}
	repository("evil", "fsmonitor-pointer")
	repository("evil2", "fsmonitor-linked")
	rename := func(from, to string) {
		if err := os.Rename(filepath.Join(m.workspace, from), filepath.Join(m.workspace, to)); err != nil {
			t.Fatal(err)
		}
	}
	rename("evil/.git", "evil/dir")
	m.write(t, "pointer/.git", "gitdir: ../evil/dir\n")
	rename("evil2/.git", "evil2/dir")
	m.write(t, "linked/f", "")
	if err := os.Symlink("../evil2/dir", filepath.Join(m.workspace, "linked", ".git")); err != nil {
		t.Fatal(err)
	}
	repository("bare", "fsmonitor-bare")
	rename("bare/.git", "bare.git")
	run("-C", "bare.git", "config", "core.bare", "false")
	run("-C", "bare.git", "config", "core.worktree", ".")
	for _, name := range []string{"git", "rg", "docker", "runc", "runsc", "buildctl", "mount", "newuidmap", "fusermount3", "caisson-guest"} {
		program(name, "program-"+name)
	}
	m.write(t, ".env", fmt.Sprintf("LD_PRELOAD=./x.so\nGIT_DIR=evil/dir\nGIT_EXEC_PATH=.\nDOCKER_HOST=tcp://127.0.0.1:%[1]d\nHTTP_PROXY=http://127.0.0.1:%[1]d\nHTTPS_PROXY=http://127.0.0.1:%[1]d\nRIPGREP_CONFIG_PATH=rc\nGODEBUG=http2debug=2\nOPENAI_BASE_URL=http://127.0.0.1:%[1]d\n", port))
	m.write(t, "Makefile", "all:\n\t"+trap("make")+"\n")
	m.write(t, ".envrc", trap("direnv")+"\n")
	err := filepath.WalkDir(m.workspace, func(path string, _ fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		return os.Lchown(path, os.Getuid(), os.Getgid())
	})
	if err != nil {
		t.Fatal(err)
	}
}

// TestPatchesAndChecksStayInTheWorkspace drives apply_patch, verify and
// verify_shell at every way out of the workspace, on each backend: nothing is
// changed outside, and no check tells anything of what is there, whether it
// guesses right or wrong. The control is the same inside, and the naive reader.
func TestPatchesAndChecksStayInTheWorkspace(t *testing.T) {
	onBackendsAtOnce(t, func(t *testing.T, backend string) {
		m := newMachine(t)
		o := newOutside(t, m)
		o.plant(t, m.workspace)
		m.write(t, "known", "a known text\n")
		before := treeOf(t, o.dir)
		naiveReachesTheCanary(t, m, o)
		patch := func(lines ...string) scriptCall {
			return call("apply_patch", map[string]any{"patch": "*** Begin Patch\n" + strings.Join(lines, "\n") + "\n*** End Patch"})
		}
		var patches []scriptCall
		for _, path := range append(o.reads(), "../../etc/passwd", "/etc/passwd", "link-magic", "fifo", "socket") {
			patches = append(patches, patch("*** Update File: "+path, "@@", "-"+o.canary, "+escaped"), patch("*** Delete File: "+path, "*** Add File: "+path, "+escaped"),
				patch("*** Update File: known", "*** Move to: "+path, "@@", " a known text"))
		}
		for _, path := range []string{"../outside/made", filepath.Join(o.dir, "made"), "link-folder/made", "link-dangling/made"} {
			patches = append(patches, patch("*** Add File: "+path, "+escaped"), patch("*** Add File: inside", "+x", "*** Add File: "+path, "+escaped"))
		}
		kinds := func(path, part, sum string) []map[string]any {
			return []map[string]any{
				{"kind": "contains", "path": path, "value": part},
				{"kind": "contains_any", "path": path, "values": []string{part}},
				{"kind": "regex_match", "path": path, "value": part},
				{"kind": "min_length", "path": path, "value": 3},
				{"kind": "sha256", "path": path, "value": sum},
				{"kind": "file_exists", "path": path},
			}
		}
		right, wrong := sha256.Sum256([]byte(o.canary+"\n")), sha256.Sum256(nil)
		var checks []scriptCall
		for _, path := range append(o.reads(), "link-root", "/etc/passwd", "../../etc/passwd") {
			for _, tool := range []string{"verify", "verify_shell"} {
				for i, right := range kinds(path, o.canary[:12], hex.EncodeToString(right[:])) {
					wrong := kinds(path, "zzzzzzzzzzzz", hex.EncodeToString(wrong[:]))[i]
					checks = append(checks, call(tool, map[string]any{"checks": []any{right}}), call(tool, map[string]any{"checks": []any{wrong}}))
				}
			}
		}
		inside := sha256.Sum256([]byte("a known text\n"))
		var known []any
		for _, c := range kinds("known", "known text", hex.EncodeToString(inside[:])) {
			known = append(known, c)
		}
		good := []scriptCall{
			call("verify", map[string]any{"checks": known}), call("verify_shell", map[string]any{"checks": known}),
			patch("*** Update File: known", "@@", "-a known text", "+another text", "*** Add File: new", "+x"),
		}
		out := m.runTask(t, append([]string{"--backend", backend, "--max-tool-calls", "2000"}, m.playing(t, patches, checks, good)...)...)
		out.want(t, 0)
		results := out.records.results(t)
		if len(results) != len(patches)+len(checks)+len(good) {
			t.Fatalf("%d results for %d calls", len(results), len(patches)+len(checks)+len(good))
		}
		for i, c := range patches {
			if !results[i].IsError {
				t.Errorf("%v succeeded: %.300s", c.Input, results[i].text())
			}
		}
		for i := 0; i < len(checks); i += 2 {
			a, b := results[len(patches)+i], results[len(patches)+i+1]
			if !a.IsError || a.IsError != b.IsError || a.text() != b.text() || strings.Contains(a.text(), o.canary[12:]) {
				t.Errorf("%s %v tells a right guess from a wrong one:\n%s\n%s", checks[i].Tool, checks[i].Input, a.text(), b.text())
			}
		}
		for i, c := range good {
			if r := results[len(patches)+len(checks)+i]; r.IsError {
				t.Errorf("control: %s %v fails inside: %s", c.Tool, c.Input, r.text())
			}
		}
		if text, err := os.ReadFile(filepath.Join(m.workspace, "known")); err != nil || string(text) != "another text\n" {
			t.Errorf("control: the good patch left %q, %v", text, err)
		}
		if _, err := os.Lstat(filepath.Join(m.workspace, "inside")); err == nil {
			t.Error("half of a patch was made")
		}
		if diff := cmp.Diff(before, treeOf(t, o.dir)); diff != "" {
			t.Errorf("the folder outside changed:\n%s", diff)
		}
	})
}
