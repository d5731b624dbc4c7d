package tools

import (
	"context"
	"encoding/json"
	"fmt"
	"path/filepath"
	"slices"
	"strings"
	"testing"
)

func TestDangerousCommands(t *testing.T) {
	patterns, err := parseDangerous(append(DangerousCommands(), "terraform destroy", `kubectl delete -A|--all`))
	if err != nil {
		t.Fatal(err)
	}
	for _, command := range []string{
		// Seed 004's four.
		"rm -rf /", "mkfs.ext4 /dev/sdb", "echo x > /dev/sda", "dd if=/dev/zero of=x",
		// The same, written otherwise.
		"rm -fr /", "rm -r -f /", "rm --recursive --force /", `rm -rf "/"`, `'rm' -rf /`, `\rm -rf /`, "/bin/rm -rf /", "rm  -rf\t/", "rm -rf / --", "rm / -rf",
		"rm -rf ~", `rm -rf "$HOME"`, "rm -rf ${HOME}", "rm -rf .git", "rm -rf *", "rm -rf /*", "rm -rf ..", "rm -Rf .",
		"rm -r //", "rm -r /.", "rm -r /./", "rm -rf ///", "rm -rf /tmp/..", "rm -rf /../", "rm -rf //*", "rm -rf /./*", "rm -rf ~/.", "rm -rf $HOME//", "rm -rf /workspace/.", "rm -rf x/..",
		"chmod -R 777 //", "echo x > /dev//sda", "dd of=/dev/./sda", "git push origin +main", "git push origin +HEAD:main",
		// Inside something else.
		"cd x && rm -rf /", "true; rm -rf /", "ls | rm -rf /", "(rm -rf /)", "{ rm -rf /; }", "if true; then rm -rf /; fi", "echo $(rm -rf /)", "echo `rm -rf /`",
		"cat <(rm -rf /)", "f() { rm -rf /; }; f", "for i in a; do rm -rf /; done", "! rm -rf /", "rm -rf / &", "A=b rm -rf /", "a=$(rm -rf /)",
		"sudo rm -rf /", "sudo -u me env A=b rm -rf /", "xargs rm -rf /", "nohup timeout 5 rm -rf /", "find . -exec rm -rf / ;",
		"sh -c 'rm -rf /'", `bash -lc "cd x; rm -rf /"`, `eval "rm -rf /"`, `sh -c "sh -c 'rm -rf /'"`, "su -c 'rm -rf /'",
		"cat <<EOF\n$(rm -rf /)\nEOF",
		// The others.
		"echo x >> /dev/nvme0n1", "cat x &> /dev/vda", "dd of=/dev/sda if=x", "chmod -R 777 /", "chown --recursive me ~", "git push --force", "git push -f origin main",
		"git push --force-with-lease=x", "git -C x reset --hard", "git clean -fdx", "find . -name x -delete", "shred x", "rm --no-preserve-root x",
		// A user's own.
		"terraform destroy", "terraform -chdir=x destroy -auto-approve", "kubectl delete pods --all", "kubectl delete pods -A",
		strings.Repeat("x", maxDangerousBytes+1),
	} {
		if dangerIn(patterns, command) == "" {
			t.Errorf("%.60q is not seen", command)
		}
	}
	for _, command := range []string{
		"", "ls", "rm x", "rm -rf build", "rm -rf /tmp/x", "rm -rf ./build", "rm -r x/..x", "rm -rf /tmp//x", "rm -rf /tmp/../srv/x", "rm -rf ''", "git push origin a+b", "rm /", "echo rm -rf /", "echo 'rm -rf /'", "grep -r / x", "git push", "git push origin main",
		"git reset --soft HEAD", "git clean -n", "dd bs=1 count=1", "echo x > /dev/null", "cat < /dev/sda", "mkfifo x", "chmod 755 /", "chmod -R 755 build", "find . -name delete",
		"cat <<EOF\nrm -rf /\nEOF", "# rm -rf /", "terraform plan", "terraform_destroy", "kubectl delete pod x", "kubectl get pods -A", "ls; (", "rm -rf $BUILD", "git log --grep=reset",
	} {
		if got := dangerIn(patterns, command); got != "" {
			t.Errorf("%q is called dangerous, by %q", command, got)
		}
	}
	// The control: seed 004's check is a part of the text.
	naive := func(command string) bool { return strings.Contains(command, "rm -rf /") }
	if naive("rm -fr /") || naive(`rm -rf "/"`) || !naive("echo 'rm -rf /'") || !naive("rm -rf /tmp/x") {
		t.Error("the naive check gets these right too: the cases above show nothing")
	}
}

func TestBadPatterns(t *testing.T) {
	for _, p := range []string{"", "  ", "rm |", "a b||c", ">", "> a b", strings.Repeat("x", 2000)} {
		if _, err := parseDangerous([]string{p}); err == nil {
			t.Errorf("%.20q is a pattern", p)
		}
		if err := (Policy{Tighten: []Policy{{Dangerous: []string{p}}}}).Validate(); err == nil {
			t.Errorf("%.20q is valid in a layer", p)
		}
	}
}

func TestGlob(t *testing.T) {
	for _, tc := range []struct {
		pattern, s string
		want       bool
	}{
		{"", "", true},
		{"", "a", false},
		{"a", "a", true},
		{"a", "ab", false},
		{"*", "", true},
		{"*", "x/y", true},
		{"a*", "a", true},
		{"a*b", "ab", true},
		{"a*b", "axxb", true},
		{"a*b", "axxbc", false},
		{"a*b*c", "a1b2c", true},
		{"a*b*c", "a1c2b", false},
		{`\*`, "*", true},
		{`\*`, "x", false},
		{`a\`, `a\`, true},
		{"*a", "ba", true},
		{"a*a", "a", false},
		{"é*", "éx", true},
	} {
		if got := parseGlob(tc.pattern).match(tc.s); got != tc.want {
			t.Errorf("glob(%q, %q) is %t", tc.pattern, tc.s, got)
		}
	}
}

// TestDangerousCommandsAreAskedAbout: where somebody can be asked, an auto mode
// becomes a question each time, and what prompts once too; where nobody can, or
// the policy asks nobody, the command runs and a warning tells of it.
func TestDangerousCommandsAreAskedAbout(t *testing.T) {
	shell := fakeTool{def: testDefinition("shell", ClassExecute)}
	shell.def.Commands = commandOfText
	once := preset(t, "sandboxed")
	once.Tools = map[string]Mode{"shell": ModePromptOnce}
	denied := preset(t, "sandboxed")
	denied.Tools = map[string]Mode{"shell": ModeDeny}
	none := preset(t, "sandboxed")
	none.Dangerous = nil
	ran, asked := []string{"called execute", "completed true"}, []string{"requested", "resolved allow by user", "called execute", "completed true"}
	warned := append([]string{"warning"}, ran...)
	for name, tc := range map[string]struct {
		policy        Policy
		broker        bool
		first, second []string
	}{
		"auto":                     {preset(t, "sandboxed"), true, asked, asked},
		"auto, nobody to ask":      {preset(t, "sandboxed"), false, warned, warned},
		"ci on a terminal":         {preset(t, "ci"), true, warned, warned},
		"prompt_once":              {once, true, asked, asked},
		"deny":                     {denied, true, []string{"failed permission_denied"}, []string{"failed permission_denied"}},
		"the control: no patterns": {none, true, ran, ran},
	} {
		t.Run(name, func(t *testing.T) {
			rec := &recorder{}
			o := Options{Policy: tc.policy}
			if tc.broker {
				o.Broker = brokerFunc(answering(DecisionAllow, ScopeSession))
			}
			d := newDispatcher(t, rec, o, shell)
			roundOK(t, d, call("a", "shell", `{"text":"cd x && rm -rf /"}`))
			roundOK(t, d, call("b", "shell", `{"text":"rm -fr ~"}`))
			wantEvents(t, rec, "a", tc.first...)
			wantEvents(t, rec, "b", tc.second...)
			roundOK(t, d, call("c", "shell", `{"text":"ls"}`))
			if events := rec.of("c"); tc.policy.Tools == nil && (len(events) != 2 || events[0] != "called execute") {
				t.Errorf("an ordinary command: %q", events)
			}
		})
	}
}

// TestCommandsAreJudgedOneByOne: text of one command can't hide another, as it
// would where they are joined.
func TestCommandsAreJudgedOneByOne(t *testing.T) {
	split := func(raw json.RawMessage) []string { return strings.Split(commandOfText(raw)[0], "|") }
	for name, text := range map[string]string{
		"continuation":  `echo \\|git push --force`,
		"here-document": `cat <<X|rm -rf /`,
		"quote":         `echo '|rm -rf /|'`,
		"brace":         `{ echo|rm -rf /|}`,
	} {
		shell := fakeTool{def: testDefinition("verify_shell", ClassExecute)}
		rec, input := &recorder{}, fmt.Sprintf(`{"text":"%s"}`, text)
		grants := NewGrants(filepath.Join(t.TempDir(), "approvals.json"))
		var shown Confirmation
		o := Options{Policy: preset(t, "sandboxed"), Workspace: "/p", Grants: grants, Broker: brokerFunc(func(_ context.Context, c Confirmation) (Answer, error) {
			shown = c
			return Answer{DecisionAllow, ScopeAlways}, nil
		})}
		shell.def.Commands = split
		roundOK(t, newDispatcher(t, rec, o, shell), call("a", "verify_shell", input))
		wantEvents(t, rec, "a", "requested", "resolved allow by user", "called execute", "completed true")
		if list, err := grants.List(); err != nil || len(list) != 0 || slices.Contains(shown.Scopes, ScopeAlways) || shown.Dangerous == "" {
			t.Errorf("%s: stored %v (%v), shown %+v", name, list, err, shown)
		}
		// The control: joined, nothing is asked.
		patterns, err := parseDangerous(o.Policy.Dangerous)
		if danger := dangerIn(patterns, strings.Join(split([]byte(input)), "\n")); err != nil || name != "brace" && danger != "" {
			t.Errorf("%s: the control sees %q, %v", name, danger, err)
		}
	}
}

func TestLayersAddTheirPatterns(t *testing.T) {
	p := Policy{Dangerous: []string{"a"}, Tighten: []Policy{{Dangerous: []string{"b"}, Tighten: []Policy{{Dangerous: []string{"c"}}}}}}
	if got := strings.Join(p.dangerous(), " "); got != "a b c" {
		t.Errorf("%q", got)
	}
}

func FuzzDangerous(f *testing.F) {
	patterns, err := parseDangerous(DangerousCommands())
	if err != nil {
		f.Fatal(err)
	}
	seeds := []string{"rm -rf /", "sh -c 'rm -rf /'", "echo $(", "a | b > c", "cat <<X\ny\nX", "f() { f; }"}
	if len(seeds) == 0 {
		f.Fatal("no seeds")
	}
	for _, s := range seeds {
		f.Add(s)
	}
	f.Fuzz(func(t *testing.T, s string) {
		if found := dangerIn(patterns, s); found != "" && dangerIn(patterns, "ls\n"+s) == "" && len(s) < maxDangerousBytes-3 {
			t.Errorf("%q is dangerous by %q, and not after another command", s, found)
		}
	})
}

// BenchmarkDangerous is what looking at one ordinary command adds to its call.
func BenchmarkDangerous(b *testing.B) {
	patterns, err := parseDangerous(DangerousCommands())
	if err != nil {
		b.Fatal(err)
	}
	b.ReportAllocs()
	for b.Loop() {
		if dangerIn(patterns, `cd sub && go test -run 'TestX|TestY' ./... 2>&1 | tail -n 40`) != "" {
			b.Fatal("dangerous")
		}
	}
}
