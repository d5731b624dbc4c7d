package tools

import "testing"

func TestStaticPhrase(t *testing.T) {
	tests := []struct{ command, want string }{ // "" where it can't be approved for good
		{"git status", "git status"},
		{"  git   status  ", "git status"},
		{"git 'status'", "git status"},
		{`git "status"`, "git status"},
		{"go test ./...", "go test ./..."},
		{"npm run build", "npm run build"},
		{"ls -la src", "ls -la src"},
		{"echo 'a b'", "echo 'a b'"},
		{"git log --oneline", "git log --oneline"},
		{"echo a=b", "echo 'a=b'"},
		{"ls # all", "ls"},

		{"", ""},
		{"ls; id", ""},
		{"ls && id", ""},
		{"ls || id", ""},
		{"ls | sh", ""},
		{"ls\nid", ""},
		{"ls &", ""},
		{"! ls", ""},
		{"$(id)", ""},
		{"echo $(id)", ""},
		{"echo `id`", ""},
		{"cat <(id)", ""},
		{"echo x >~/.x", ""},
		{"cat < /etc/passwd", ""},
		{"cat <<EOF\nx\nEOF", ""},
		{"a=b ls", ""},
		{"a=b", ""},
		{"echo $HOME", ""},
		{`echo "$HOME"`, ""},
		{"echo ${x}", ""},
		{"echo $((1))", ""},
		{"ls *.go", ""},
		{"ls ?", ""},
		{"ls [a]", ""},
		{"ls {a,b}", ""},
		{"ls ~/x", ""},
		{`ls \;`, ""},
		{"echo $'a'", ""},
		{`echo $"a"`, ""},
		{"(ls)", ""},
		{"{ ls; }", ""},
		{"if x; then y; fi", ""},
		{"f() { ls; }", ""},
		{"[[ a ]]", ""},
		{"((1))", ""},
		{"'unterminated", ""},
		{"echo 'a\nb'", ""},
		{"echo a\u202eb", ""},
		{"\x10", ""},
		{"echo '\x1b[2J'", ""},
		{"-rf", ""},
		{"ls\r\nid", ""},

		// What runs another command.
		{"git -c core.pager=x status", ""},
		{"git --config-env=a=b status", ""},
		{"git --exec-path=/x status", ""},
		{"find . -exec id ;", ""},
		{"find . -name x", ""},
		{"rg --pre x y", ""},
		{"tar --checkpoint-action=exec=x -cf a b", ""},
		{"go test -exec x ./...", ""},
		{"go test -exec=x", ""},
		{"go vet -vettool=x", ""},
		{"go build -toolexec x", ""},
		{"sed e x", ""},
		{"awk x", ""},
		{"env ls", ""},
		{"env -S ls", ""},
		{"xargs rm", ""},
		{"bash x.sh", ""},
		{"sh -c ls", ""},
		{"python3 x.py", ""},
		{"ssh host", ""},
		{"sudo ls", ""},
		{"eval ls", ""},
		{"exec ls", ""},
		{". x", ""},
		{"source x", ""},
		{"command ls", ""},
		{"nohup ls", ""},
		{"time ls", ""},
		{"timeout 5 ls", ""},
		{"node -e x", ""},
		{"make", ""},
		{"rsync --rsh=x a b", ""},
		{"rsync -ex a b", ""},
	}
	for _, tt := range tests {
		got, err := StaticPhrase(tt.command)
		if got != tt.want || (err == nil) != (tt.want != "") {
			t.Errorf("StaticPhrase(%q) is %q, %v, want %q", tt.command, got, err, tt.want)
		}
	}
}

func FuzzStaticPhrase(f *testing.F) {
	seeds := []string{"git status", "echo 'a b'", "ls; id", "a=b c", "echo $x", "x\ny", "echo 'it'\"'\"'s'"}
	for _, s := range seeds {
		f.Add(s)
	}
	if len(seeds) == 0 {
		f.Fatal("no seeds")
	}
	f.Fuzz(func(t *testing.T, s string) {
		phrase, err := StaticPhrase(s)
		if err != nil {
			return
		}
		again, err := StaticPhrase(phrase)
		if err != nil || again != phrase {
			t.Fatalf("%q gives %q, which gives %q, %v", s, phrase, again, err)
		}
	})
}
