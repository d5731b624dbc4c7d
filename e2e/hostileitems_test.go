package e2e

import (
	"errors"
	"fmt"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"
)

// otherUser is a user of the host who neither owns the workspace nor runs Caisson.
const otherUser = 4343

// Scripts that attacks share.
const (
	copyID     = `cp "$(command -v id)" id`
	gainsOwner = `[ "$(./id -u)" = 4242 ] && @P@`
	// perlNumber sets $n to the number of a system call on this machine.
	perlNumber = "chomp(my $m = `uname -m`); my $n = $m eq q(x86_64) ? "
)

// privilegeAttacks leave a program that runs as the workspace's owner, or with
// capabilities, where another user starts it.
var privilegeAttacks = map[string]attack{
	"suid":        {as: otherUser, setup: copyID, session: "chmod 4755 id", look: gainsOwner},
	"sgid":        {as: otherUser, setup: copyID, session: "chmod 2755 id", look: `[ "$(./id -g)" = 4242 ] && @P@`},
	"suidmoved":   {as: otherUser, setup: copyID, session: `mkdir to; d=$(mktemp -d); cp id $d/id; chmod 4755 $d/id; mv $d/id to/id`, look: "cd to; " + gainsOwner},
	"suidcopied":  {as: otherUser, setup: copyID + "; chmod 4750 id", session: "mkdir to; cp -p id to/id; chmod a+x to/id", look: "cd to; " + gainsOwner},
	"suidtar":     {as: otherUser, setup: copyID + "; chmod 4755 id; tar -cf a.tar id; rm id", session: "tar -xpf a.tar --no-same-owner", look: gainsOwner},
	"suidinstall": {as: otherUser, setup: copyID, session: "mkdir to; install -m 4755 id to/id", look: "cd to; " + gainsOwner},
	"suidmknod":   {as: otherUser, session: "perl -e '" + perlNumber + `259 : 33; my $p = "f"; umask 0; syscall($n, -100, $p, 0104755, 0)'`, look: "[ -u f ] && @P@"},
	"suidcreated": {as: otherUser, session: `perl -MFcntl -e 'umask 0; sysopen(my $f, "f", O_CREAT|O_WRONLY, 04755)'`, look: "[ -u f ] && @P@"},
	"suiddir":     {as: otherUser, session: "mkdir d; chmod 4755 d", look: "[ -u d ] && @P@"},
	"capability": {
		as: otherUser, asRoot: true, setup: `cp "$(command -v cat)" cat`, look: "./cat @S@ >/dev/null 2>&1 && @P@",
		session: "perl -e '" + perlNumber + `188 : 5; my ($p, $k, $v) = ("cat", "security.capability", pack("V5", 0x02000001, 4, 0, 0, 0)); syscall($n, $p, $k, $v, 20, 0)'`,
	},
}

// listedAttacks leave files that programs obey which the user starts in the
// workspace. They stay, so that the report must list them.
var listedAttacks = map[string]attack{
	"editor":   {listed: ".exrc", session: `echo 'silent !@P@' >.exrc`, look: "HOME=$PWD vi --not-a-term -T dumb --cmd 'set exrc' -c 'q!' f </dev/null >/dev/null 2>&1"},
	"make":     {listed: "Makefile", session: `printf 'all:\n\t@P@\n' >Makefile`, look: "make"},
	"direnv":   {listed: ".envrc", session: "echo @P@ >.envrc", look: ". ./.envrc"},
	"activate": {listed: ".venv/bin/activate", session: "mkdir -p .venv/bin; echo @P@ >.venv/bin/activate", look: ". .venv/bin/activate"},
	"npmbin":   {listed: "node_modules/.bin/tsc", session: `mkdir -p node_modules/.bin; printf '#!/bin/sh\n@P@\n' >node_modules/.bin/tsc; chmod +x node_modules/.bin/tsc`, look: "PATH=node_modules/.bin:$PATH tsc"},
	"symlink":  {listed: "notes.txt", session: "ln -s @V@ notes.txt", look: "echo x >>notes.txt"},
}

// wantListed checks that the report lists the files that stay, and a symlink with
// its target.
func (m hostileMachine) wantListed(t *testing.T, report []byte) {
	t.Helper()
	r := parse[struct {
		HostExecuted []struct{ Path, By, Target string } `json:"host_executed"`
	}](t, report)
	listed := map[string]string{}
	for _, f := range r.HostExecuted {
		listed[f.Path] = f.Target
	}
	for name, a := range attacks {
		if a.listed == "" {
			continue
		}
		target, ok := listed[name+"/"+a.listed]
		if !ok {
			t.Errorf("%s/%s is not listed", name, a.listed)
		}
		if name == "symlink" && target != m.victim {
			t.Errorf("the symlink is listed with the target %q, want %q", target, m.victim)
		}
	}
}

// attackGrants: an approval for good of one command answers no other one. With
// "cat \", CR, LF, "./run.sh" the parser alone reads the approved command, and a
// shell runs ./run.sh.
func attackGrants(t *testing.T, backend string) {
	const approved, other = "cat ./run.sh", "cat \\\r\n./run.sh"
	m := newMachine(t)
	m.write(t, "run.sh", "#!/bin/sh\necho ran >>ran\n")
	control := t.TempDir()
	for _, dir := range []string{control, m.workspace} {
		if err := errors.Join(os.WriteFile(filepath.Join(dir, "run.sh"), []byte("#!/bin/sh\necho ran >>ran\n"), 0o755), os.Chmod(filepath.Join(dir, "run.sh"), 0o755)); err != nil {
			t.Fatal(err)
		}
	}
	naive := exec.CommandContext(t.Context(), "bash", "-c", other)
	naive.Dir = control
	_ = naive.Run() // cat finds no file named CR
	if _, err := os.Stat(filepath.Join(control, "ran")); err != nil {
		t.Fatalf("control: the other command does not run the script: %v", err)
	}

	turns := ""
	for _, command := range []string{approved, approved, other} {
		turns += fmt.Sprintf("  - calls: [{tool: shell, input: {command: %s}}]\n", mustJSON(t, command))
	}
	c := apiClient{t: t, base: m.servingCut(t, backend, turns+"  - text: Done.\n"), token: m.token()}
	session := c.start(m.workspace)
	turn := c.turn(session, "do it")
	var all records
	// next waits for a confirmation other than the last one, or the turn's end.
	next := func(last string) (q asked) {
		eventually(t, "a command is asked about, or the turn ends", deadline, func() bool {
			q, all = c.waiting(session)["shell"], m.traceOf(t, session)
			return q.ID != "" && q.ID != last || len(all.of("turn.completed")) == 1
		})
		return q
	}
	first := next("")
	c.do(http.MethodPost, "/sessions/"+session+"/turns/"+turn+"/confirmations/"+first.ID, map[string]string{"decision": "allow", "scope": "always"}, http.StatusOK)
	if second := next(first.ID); second.ID != "" {
		c.answer(session, second, "deny")
		next(second.ID)
	}
	results := all.results(t)
	if len(results) != 3 || results[0].IsError || results[1].IsError || !results[2].IsError {
		t.Errorf("the approved command, the same again and the other one: %+v", results)
	}
	if n := len(all.of("tool.confirmation_requested")); n != 2 {
		t.Errorf("%d confirmations were requested, want one of the approved command and one of the other", n)
	}
	if _, err := os.Stat(filepath.Join(m.workspace, "ran")); err == nil {
		t.Error("the script ran")
	}
}

// attackSiblings: rules on shell and delete_file bind the tools that do the same.
// The control is the same session without the rules.
func attackSiblings(t *testing.T, backend string) {
	calls := []scriptCall{
		call("verify_shell", map[string]any{"checks": []any{map[string]any{"kind": "shell", "cmd": "echo x >by-verify"}}}),
		call("declared", map[string]any{}),
		call("apply_patch", map[string]any{"patch": "*** Begin Patch\n*** Delete File: precious\n*** End Patch"}),
	}
	const declared = "tools: {declared: {description: Does it., input_schema: {type: object}, script: echo x >by-declared}}\n"
	for config, want := range map[string][]string{
		declared + "policy: {preset: ci}\n":                                                 {"by-declared", "by-verify"},
		declared + "policy: {preset: ci, tools: {shell: prompt, delete_file: deny}}\n":      {"precious"},
		declared + "policy: {preset: sandboxed, tools: {shell: deny, delete_file: deny}}\n": {"precious"},
	} {
		m := newMachine(t)
		m.write(t, "precious", "x\n")
		m.config(t, config)
		out := m.run(t, append([]string{"run", "--workspace", m.workspace, "--backend", backend, "--json"}, m.playing(t, calls)...)...)
		got := slices.DeleteFunc(namesIn(t, m.workspace), func(name string) bool { return strings.HasPrefix(name, ".") })
		if !slices.Equal(got, want) {
			t.Errorf("with %s the workspace has %q, want %q: status %d, %s", config, got, want, out.status, out.stderr)
		}
	}
}

// attackApply: apply leaves symlinks out that lead out of the workspace, and lists
// them. The control is apply with the flag that brings them in.
func attackApply(t *testing.T, backend string) {
	m := newHostileMachine(t)
	out := m.runTask(t, append([]string{"--backend", backend, "--mode", "overlay"}, m.playing(t, []scriptCall{shell(
		m.words("echo x >a; ln -s a inside; ln -s @V@ out; mkdir sub; ln -s ../../.. sub/up; ln -s sub/up through"))})...)...)
	out.want(t, 0)
	leading := []string{"out", "sub/up", "through"}
	apply := func(args ...string) outcome {
		return m.run(t, append([]string{"apply", "--workspace", m.workspace}, args...)...)
	}
	there := func(name string) bool {
		_, err := os.Lstat(filepath.Join(m.workspace, name))
		return err == nil
	}
	applied := apply()
	if !there("a") || !there("inside") {
		t.Errorf("what stays inside was not applied: %d %s%s", applied.status, applied.stdout, applied.stderr)
	}
	for _, name := range leading {
		if there(name) || !strings.Contains(applied.stdout+applied.stderr, name) {
			t.Errorf("%s was applied, or not listed: %s%s", name, applied.stdout, applied.stderr)
		}
	}
	applied = apply("--skip-conflicts", "--with-symlinks-out")
	for _, name := range leading {
		if !there(name) {
			t.Errorf("control: %s was not applied when asked for: %d %s%s", name, applied.status, applied.stdout, applied.stderr)
		}
	}
}
