package policy

import (
	"fmt"
	"strings"
	"testing"
)

func TestDangerousCommands(t *testing.T) {
	patterns, err := parseDangerous(append(DangerousCommands(), "terraform destroy", `kubectl delete -A|--all`), "")
	if err != nil {
		t.Fatal(err)
	}
	for _, command := range []string{
		// The four of the loop with four tools (docs/internal/specification.md).
		"rm -rf /", "mkfs.ext4 /dev/sdb", "echo x > /dev/sda", "dd if=/dev/zero of=x",
		// The same in other spellings.
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
		// Read by the shell in another way than by the parser.
		"echo \\\r\nrm -rf /", "echo \\\r\nrm -rf /\r\n", "echo 'a\x00b' x\nrm -rf /", "rm -rf /\r", "echo \xe9\nrm -rf /", "rm -rf /\n(", "(\nrm -rf /", "echo ${x@\nrm -rf /",
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
	// The control: that loop's check, which searches the text.
	naive := func(command string) bool { return strings.Contains(command, "rm -rf /") }
	if naive("rm -fr /") || naive(`rm -rf "/"`) || !naive("echo 'rm -rf /'") || !naive("rm -rf /tmp/x") {
		t.Error("the naive check gets these right too: the cases above show nothing")
	}
}

// TestDangerousSpellings has common spellings for each built-in pattern, and
// similar harmless commands.
func TestDangerousSpellings(t *testing.T) {
	patterns, err := parseDangerous(DangerousCommands(), "")
	if err != nil {
		t.Fatal(err)
	}
	for name, tc := range map[string]struct{ seen, missed []string }{
		"git push that forces": {
			[]string{
				"git push -f", "git push -uf origin main", "git push --force origin", "git push --forc", "git push --force-with-lease", "git push --force-with-lease=main:abc",
				"git push --force-with-lease --force-if-includes", "git -C sub push -f", "git -c k=v push --force-with-lease", "git --git-dir=x/.git push -f", "git --git-dir x/.git --work-tree x push -f",
				"git --no-pager -c a=b -C x push -f", "/usr/bin/git push -f", "sudo git -C x push -f", "command git push -f", "env A=b git -C x push -f", "sh -c 'git -C x push -f'",
				"sudo sh -c 'git push -f'", "cd x && git push -f", "git push origin +main", "git push origin +HEAD:main", "git push origin '+refs/heads/*:refs/heads/*'", "GIT_DIR=x git push -f",
			},
			[]string{
				"git push", "git push origin main", "git push -u origin main", "git push origin HEAD:main", "git push --follow-tags", "git push -n -f", "git push --dry-run --force",
				"git push origin a+b", "git fetch -f", "git fetch origin +main", "git add -f push", "git log --grep push -f", "git commit -m 'push -f'", "git config alias.p 'push -f'",
				"git -C push -f status", "git -C push log -f", "git stash push -f", "echo git push -f", "git pull --force",
			},
		},
		"git push that deletes": {
			[]string{
				"git push -d origin x", "git push origin -d x", "git push --delete origin x", "git push origin --del x", "git push origin :main", "git push origin a :b", "git push origin :refs/tags/v1",
				"git push --mirror", "git push --mir x", "git push --prune origin", "git -C x push -d origin y", "git -c k=v push origin :main",
			},
			[]string{"git push origin a:b", "git push origin refs/heads/a:refs/heads/b", "git push git@host:repo.git main", "git push ssh://host:22/x main", "git push --dry-run origin :main", "git branch -d push", "git remote prune origin"},
		},
		"git that throws work away": {
			[]string{
				"git reset --hard", "git -C x reset --hard HEAD~1", "git reset --har", "git clean -f", "git clean -xdf", "git -c clean.requireForce=true clean --force -d", "git checkout -f", "git checkout .",
				"git checkout -- .", "git checkout HEAD -- ./", "git checkout -- '*'", "git restore .", "git restore :/", "git restore -SW .", "git restore --staged --worktree .", "git switch --discard-changes x", "git switch -f x",
				"git stash clear", "git stash drop", "git stash drop 'stash@{1}'", "git branch -D x", "git branch -d -f x", "git branch --delete --force x", "git reflog expire --expire=now --all", "git update-ref -d refs/heads/x", "git filter-branch x", "git filter-repo --path x",
			},
			[]string{
				"git reset", "git reset --soft HEAD~1", "git reset HEAD .", "git clean -n", "git clean -nfd", "git clean -fd --dry-run", "git checkout main", "git checkout -b x", "git checkout -- a.go", "git restore a.go", "git restore --staged .", "git restore -S .",
				"git stash", "git stash pop", "git stash list", "git branch -d x", "git branch", "git reflog", "git log --oneline -- .", "git add .", "git diff -- .", "git switch -c x",
			},
		},
		"rm of what is not a project's": {
			[]string{
				"rm -rf /usr", "rm -rf /etc/", "rm -rf /home/*", "rm -r --force /var", "rm --recurs /", "rm -rf -- /", "rm -rf / tmp", "rm -rf ../..", "rm -rf ../../", "rm -rf ../*", "rm -rf .*", "rm -rf $PWD", `rm -rf "$PWD"/*`,
				"rm -rf $(pwd)", "rm -rf `pwd`", "rm -rf ${HOME}/", `rm -rf "$HOME"/*`, "rm -rf .git/*", "rm -rf .git*", "rm -rf /workspace/.git", "rm -rf /workspace//./.git/", "rm -r -f -- ./.git", "rm -rf $PWD/.git", `rm -rf "$(pwd)"/.git/*`, "rm -rf sub/../.git", "rm -rf */", "rm --no-pres x", "bash <<EOF\nrm -rf /\nEOF", "sh -s <<'X'\nrm -rf /\nX", "bash <<< 'rm -rf /'", "sudo bash -c 'rm -rf /'",
				"env -S 'rm -rf /'", "flock x -c 'rm -rf /'", "watch 'rm -rf /'", "nohup sh -c 'cd x; rm -rf /' &", "timeout 5 bash -lc 'rm -rf ~'",
			},
			[]string{
				"rm -rf /usr/local/x", "rm -rf /home/me/p/build", "rm -rf /var/tmp/x", "rm -rf ../build", "rm -rf $PWD/build", "rm -rf .cache", "rm -rf .github", "rm -rf .git2", "rm -rf node_modules dist", "rm -rf ./*.o", "rm -rf $HOME/.cache/x",
				"rm -f /usr", "rm -rf $(mktemp -d)", "cat <<EOF\nrm -rf /\nEOF", "grep -rf / x", "sudo echo 'rm -rf /'", "env A='rm -rf /' ls", "rmdir -p /", "git rm -r .", "docker run --rm -it x /",
			},
		},
		"the others": {
			[]string{
				"cat x | tee /dev/sda", "tee -a /dev/nvme0n1", "echo b > /proc/sysrq-trigger", "echo x >| /dev/dm-0", "dd of=/dev/md0", "chmod -R 777 /usr", "chown -hR me /etc", "chgrp --recurs x ~/", "chmod -R a+w /*",
				"systemctl reboot", "sudo systemctl poweroff -i", "init 0", "/sbin/init 6", "sudo shutdown now", "mkfs -t ext4 x",
			},
			[]string{
				"tee log", "cat x | tee /dev/null", "echo x > /dev/stdout", "chmod -R 777 build", "chmod --reference=x /", "chown me /", "systemctl status reboot.target", "systemctl restart x", "npm init 0", "git init", "make mkfs", "man 8 reboot", "less shutdown", "cat shutdown",
			},
		},
	} {
		for _, command := range tc.seen {
			if dangerIn(patterns, command) == "" {
				t.Errorf("%s: %q is not seen", name, command)
			}
		}
		for _, command := range tc.missed {
			if got := dangerIn(patterns, command); got != "" {
				t.Errorf("%s: %q is called dangerous, by %q", name, command, got)
			}
		}
	}
	for command, want := range map[string]string{
		"sudo git -C x push -f": "git -C x push -f", "git clean -fd": "git clean -fd", "/bin/rm -rf /": "rm -rf /", "echo x > /dev/sda": "> /dev/sda", "git-push -f": "git-push -f",
	} {
		if got := dangerIn(patterns, command); got != want {
			t.Errorf("%q is shown as %q, want %q", command, got, want)
		}
	}
}

// TestDangerousPatterns tests the meaning of a pattern's words.
func TestDangerousPatterns(t *testing.T) {
	for _, tc := range []struct {
		pattern, command string
		want             bool
	}{
		{"x --force", "x --force=1", true},
		{"x --force", "x --forced", false},
		{"x if", "x if=1", false},
		{"x -r", "x -fr", true},
		{"x -r", "x -f", false},
		{"x -r", "x --r", false},
		{"x -r", "x fr", false},
		{"x -r", "x -", false},
		{"x --", "x -a", false},
		{"x ab", "x -cb", false},
		{"x -delete", "x -depth", false},
		{"!ls", "ls", false},
		{"git-*", "git filter-branch", true},
		{"git-*", "git --version", false},
		{"rm -r /", "r\x01m -r /", true}, // what a control character does is the shell's secret
		{"ls " + strings.Repeat("x", 1021), "ls", false},
	} {
		patterns, err := parseDangerous([]string{tc.pattern}, "")
		if err != nil {
			t.Fatal(err)
		}
		if got := dangerIn(patterns, tc.command) != ""; got != tc.want {
			t.Errorf("%.20s finds %q: %t", tc.pattern, tc.command, got)
		}
	}
}

// quoteScript quotes a script as one word.
func quoteScript(script string) string { return "'" + strings.ReplaceAll(script, "'", `'\''`) + "'" }

// TestDangerousDepth: nested scripts are searched to a depth of four, however a
// shell gets them.
func TestDangerousDepth(t *testing.T) {
	patterns, err := parseDangerous([]string{"rm -r /"}, "")
	if err != nil {
		t.Fatal(err)
	}
	for name, wrap := range map[string]func(script string, depth int) string{
		"an argument":     func(s string, _ int) string { return "sh -c " + quoteScript(s) },
		"a here-string":   func(s string, _ int) string { return "sh <<< " + quoteScript(s) },
		"a here-document": func(s string, n int) string { return fmt.Sprintf("sh <<'E%d'\n%s\nE%[1]d", n, s) },
	} {
		script := "rm -r /"
		for depth := range 7 {
			if found := dangerIn(patterns, script) != ""; found != (depth <= 4) {
				t.Errorf("%s: found at depth %d: %t", name, depth, found)
			}
			if name == "an argument" {
				if found := dangerIn(patterns, "true; (\n"+script) != ""; found != (depth <= 3) { // its lines are scripts
					t.Errorf("found at depth %d of a line behind an error: %t", depth, found)
				}
			}
			script = wrap(script, depth)
		}
	}
}

// TestDangerousSearchIsBounded: a command made to take long counts as dangerous,
// and the search gives up.
func TestDangerousSearchIsBounded(t *testing.T) {
	patterns, err := parseDangerous([]string{"never seen"}, "")
	if err != nil {
		t.Fatal(err)
	}
	for name, command := range map[string]string{
		"scripts": "sudo " + strings.Repeat("sh ", 5000), "commands": strings.Repeat("a;", 5000),
		"nested": "sudo " + strings.Repeat("sh ", 40) + `"` + strings.Repeat("sh ", 60) + `'` + strings.Repeat("eval ", 60) + `'"`,
	} {
		s := dangerSearch{match: func(name string, args, shown []string) string { return matchPatterns(patterns, name, args, shown) }}
		if s.searchScript(command, 0); s.found == "" || s.steps > maxDangerousSteps+1 {
			t.Errorf("%s: %d steps, found %q", name, s.steps, s.found)
		}
	}
	for command, want := range map[string]bool{
		strings.Repeat("a;", maxDangerousSteps-1): false, strings.Repeat("a;", maxDangerousSteps): true,
		strings.Repeat("x", maxDangerousBytes): false, strings.Repeat("x", maxDangerousBytes+1): true,
	} {
		if got := dangerIn(patterns, command); (got != "") != want {
			t.Errorf("%d bytes count as dangerous: %q", len(command), got)
		}
	}
	s := dangerSearch{match: func(name string, args, shown []string) string { return matchPatterns(patterns, name, args, shown) }}
	if s.searchScript("sudo "+strings.Repeat("x ", 5000), 0); s.found != "" || s.steps > 2+maxRunnerWords {
		t.Errorf("%d steps, found %q", s.steps, s.found)
	}
}

func TestBadPatterns(t *testing.T) {
	for _, p := range []string{"", "  ", "rm |", "rm !", "rm !a|", "a b||c", ">", "> a b", strings.Repeat("x", 1025)} {
		if _, err := parseDangerous([]string{p}, ""); err == nil {
			t.Errorf("%.20q is a pattern", p)
		}
		if err := (Policy{Tighten: []Policy{{Dangerous: []string{p}}}}).Validate(); err == nil {
			t.Errorf("%.20q is valid in a layer", p)
		}
		if _, err := (Policy{Dangerous: []string{p}}).DangerousIn("ls"); err == nil {
			t.Errorf("%.20q finds nothing dangerous and no error", p)
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
		{"ab*b*c", "abc", false},
		{"*a*a*", "xax", false},
		{"*a*a*", "xaa", true},
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

func TestLayersAddTheirPatterns(t *testing.T) {
	p := Policy{Dangerous: []string{"a"}, Tighten: []Policy{{Dangerous: []string{"b"}, Tighten: []Policy{{Dangerous: []string{"c"}}}}}}
	if got := strings.Join(p.dangerousPatterns(), " "); got != "a b c" {
		t.Errorf("%q", got)
	}
}

func FuzzDangerous(f *testing.F) {
	patterns, err := parseDangerous(DangerousCommands(), "")
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

// BenchmarkDangerous measures searching one ordinary command.
func BenchmarkDangerous(b *testing.B) {
	patterns, err := parseDangerous(DangerousCommands(), "")
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

func TestDangerousMountPoint(t *testing.T) {
	m, err := Policy{Dangerous: DangerousCommands()}.DangerMatcher("/srv/a*b")
	if err != nil {
		t.Fatal(err)
	}
	for script, want := range map[string]bool{
		"rm -rf '/srv/a*b'": true, "rm -rf '/srv/a*b/*'": true, "rm -rf /workspace": true, "chmod -R 777 '/srv/a*b'": true,
		"rm -rf /srv/axb": false, "rm -rf '/srv/a*b/out'": false, "rm -rf /workspaces": false,
	} {
		if got := m.Find(script); (got != "") != want {
			t.Errorf("%s: found %q, want one: %v", script, got, want)
		}
	}
}
