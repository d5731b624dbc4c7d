package policy

import (
	"encoding/json"
	"strings"
	"testing"
	"unicode/utf8"

	"github.com/caisson-run/caisson/tools"
)

func commandTool(name string) tools.Definition {
	return tools.Definition{
		Name: tools.Name(name), Class: tools.ClassExecute, Runs: tools.PlaceSandbox,
		Commands: func(raw json.RawMessage) []string {
			var list []string
			_ = json.Unmarshal(raw, &list)
			return list
		},
	}
}

func decideCommandsOf(t testing.TB, p Policy, commands ...string) Verdict {
	t.Helper()
	if err := p.Validate(); err != nil {
		t.Fatal(err)
	}
	input, err := json.Marshal(commands)
	if err != nil {
		t.Fatal(err)
	}
	danger, err := p.DangerMatcher("")
	if err != nil {
		t.Fatal(err)
	}
	return p.DecideCall(danger, commandTool("shell"), "", input)
}

func promptingPolicy(t testing.TB, commands map[string]Mode) Policy {
	t.Helper()
	p, err := Preset("default")
	if err != nil {
		t.Fatal(err)
	}
	p.Commands = commands
	return p
}

// attacks are commands that an entry must not let run, each with a harmless one
// that it does.
var attacks = []struct{ entry, harmless, attack string }{
	{"make *", "make test", "make -f evil"},
	{"make *", "make test", "make -fevil"},
	{"make *", "make test", "make --file=evil test"},
	{"make *", "make test", "make --fi=evil"},
	{"make *", "make test", "make --makefile evil"},
	{"make *", "make -kj4 test", "make -kf evil"},
	{"make *", "make -k -j 4 test", "make -C dir"},
	{"make *", "make -k -j 4 test", "make -Cdir test"},
	{"make *", "make test", "make --directory=dir"},
	{"make *", "make test", "make SHELL=./evil test"},
	{"make *", "make test", "make test 'CC:=evil'"},
	{"make *", "make test", "make --eval='$(shell id)'"},
	{"make *", "make test", "make -E x"},
	{"make *", "make test", "make -I dir"},
	{"make *", "make test", "make @file"},
	{"make *", "make test", "CC=evil make test"},
	{"make *", "make test", "env X=Y make test"},
	{"make *", "make test", "./make test"},
	{"make *", "make test", "sudo make test"},
	{"make *", "make test", "m\u0430ke test"},
	{"make *", "make test", "make test; id"},
	{"make *", "make test", "make test && id"},
	{"make *", "make test", "make test | sh"},
	{"make *", "make test", "make test &"},
	{"make *", "make test", "make test\nid"},
	{"make *", "make test", "make test\r\nid"},
	{"make *", "make test", "make test > Makefile"},
	{"make *", "make test", "make test 2>&1"},
	{"make *", "make test", "make test <<E\nE"},
	{"make *", "make test", "make <(id)"},
	{"make *", "make test", "(make test)"},
	{"make *", "make test", "! make test"},
	{"make *", "make test", "make $VAR"},
	{"make *", "make test", "make \"$VAR\""},
	{"make *", "make test", "make $(id)"},
	{"make *", "make test", "make `id`"},
	{"make *", "make test", "make '$(id)'"},
	{"make *", "make test", "make *"},
	{"make *", "make test", "make te?t"},
	{"make *", "make test", "make {a,b}"},
	{"make *", "make test", "make ~/x"},
	{"make *", "make test", `make \-f evil`},
	{"make *", "make test", `make "-f" evil`},
	{"make *", "make test", "make $'-f' evil"},
	{"make *", "make test", "make test\u200b"},
	{"make *", "make test", "maker test"},
	{"go test", "go test", "go test ./..."},
	{"go test *", "go test ./... -run 'TestA|TestB' -v -count=1 -race", "go test -exec ./evil ./..."},
	{"go test *", "go test --run=Test ./...", "go test --exec=./evil ./..."},
	{"go test *", "go test ./...", "go test -toolexec evil ./..."},
	{"go test *", "go test ./...", "go test -vettool=evil"},
	{"go test *", "go test ./...", "go test -C dir ./..."},
	{"go test *", "go test ./...", "go test -overlay=x.json"},
	{"go test *", "go test ./...", "go test -modfile=evil.mod"},
	{"go test *", "go test ./...", "go test -ldflags=-extld=evil"},
	{"go test *", "go test ./...", "go test -o /bin/x"},
	{"go test *", "go test ./...", "go test . -args -exec"},
	{"go test *", "go test ./...", "go -C dir test"},
	{"go *", "go build ./...", "go run ./evil"},
	{"go *", "go build ./...", "go generate ./..."},
	{"go *", "go build ./...", "go tool evil"},
	{"go *", "go env", "go env -w GOFLAGS=-toolexec=evil"},
	{"git diff *", "git diff --stat HEAD", "git diff --ext-diff"},
	{"git diff *", "git diff HEAD -- file", "git diff --output=Makefile"},
	{"git diff *", "git diff HEAD", "git -c diff.external=evil diff"},
	{"git *", "git log -p -5 --oneline", "git -c alias.x=!evil x"},
	{"git *", "git log -p", "git -p log"},
	{"git *", "git log", "git -C dir log"},
	{"git *", "git log", "git --git-dir=evil log"},
	{"git *", "git log", "git --exec-path=evil log"},
	{"git *", "git log", "git config core.pager evil"},
	{"git *", "git grep -n x", "git grep -Oevil x"},
	{"git *", "git grep -n x", "git grep --open-files-in-pager=evil x"},
	{"git *", "git clone https://example.org/x", "git clone -u evil x"},
	{"git *", "git clone https://example.org/x", "git clone --upload-p=evil x"},
	{"git *", "git clone https://example.org/x", "git clone 'ext::sh -c id'"},
	{"git *", "git status --short", "git rebase -x evil HEAD"},
	{"git *", "git status --short", "git rebase --exec evil HEAD"},
	{"git *", "git bisect start", "git bisect run evil"},
	{"git *", "git submodule update", "git submodule foreach evil"},
	{"git *", "git status", "git push --force"},
	{"git *", "git status", "git clean -f"},
	{"git *", "git stash", "git merge-index ./evil file"},
	{"git *", "git stash list", "git remote-ext a 'sh -c id'"},
	{"git *", "git worktree list", "git an-alias"},
	{"git *", "git branch --all", "git hook run pre-commit"},
	{"npm test *", "npm test", "npm test --prefix dir"},
	{"npm *", "npm test", "npm exe evil"},
	{"npm *", "npm ci", "npm expl lodash -- sh"},
	{"yarn *", "yarn test", "yarn tsx evil.ts"},
	{"yarn *", "yarn install --offline", "yarn node evil.js"},
	{"pnpm *", "pnpm ls", "pnpm tsx evil.ts"},
	{"cargo *", "cargo clippy --all-targets", "cargo an-alias"},
	{"dotnet *", "dotnet test", "dotnet evil.dll"},
	{"mix *", "mix test", "mix cmd evil"},
	{"npm run *", "npm run build", "npm run build --script-shell=evil"},
	{"npm run *", "npm run build --silent", "npm run build --node-options=--require=evil"},
	{"npm *", "npm test", "npm exec evil"},
	{"npm *", "npm test", "npm x evil"},
	{"npm *", "npm test", "npm --prefix dir test"},
	{"npm *", "npm test", "npm config set script-shell evil"},
	{"npx jest *", "npx jest src/a.test.js --verbose", "npx jest --config=evil.js"},
	{"npx jest *", "npx jest", "npx --package=evil jest"},
	{"cargo *", "cargo test --workspace -- --nocapture", "cargo --config x test"},
	{"cargo *", "cargo build --release", "cargo run"},
	{"cargo *", "cargo build --release", "cargo +evil build"},
	{"cargo *", "cargo build --release", "cargo build --manifest-path dir/Cargo.toml"},
	{"pytest *", "pytest -xvs -k 'a and b' tests/test_a.py::test_b", "pytest -p evil"},
	{"pytest *", "pytest --maxfail=1", "pytest -c evil.ini"},
	{"pytest *", "pytest -q", "pytest --rootdir=dir"},
	{"pytest *", "pytest -q", "pytest -o python_files=evil"},
	{"python3 -m pytest *", "python3 -m pytest -q tests", "python3 -m pytest -p evil"},
	{"python3 -m pytest *", "python3 -m pytest", "python3 -c 'import os'"},
	{"python3 -m pytest *", "python3 -m pytest", "python3 -m http.server"},
	{"uv run pytest *", "uv run pytest -q", "uv run sh"},
	{"rg *", "rg -n 'a|b' src -g '*.go'", "rg --pre evil x"},
	{"rg *", "rg -n x", "rg --hostname-bin=evil x"},
	{"ls *", "ls -la src", "ls; id"},
	{"docker compose *", "docker compose ps", "docker compose exec web sh"},
	{"docker compose *", "docker compose ps", "docker compose -f evil ps"},
	{"mycheck *", "mycheck src --verbose", "mycheck --plugin evil"},
	{"mycheck *", "mycheck src -v", "mycheck -x"},
	{"mycheck *", "mycheck src", "mycheck a=b"},
	{"mycheck *", "mycheck src", "mycheck run evil"},
	{"mycheck *", "mycheck src", "mycheck -"},
}

// Each attack is asked about, and the harmless command is not. Without a rule about
// further words, all attacks would run except those that are no single phrase.
func TestEntriesOfCommandsLetNoAttackRun(t *testing.T) {
	for _, a := range attacks {
		p := promptingPolicy(t, map[string]Mode{a.entry: ModeAuto})
		if got := decideCommandsOf(t, p, a.harmless); got.Mode != ModeAuto || got.Rule != "command "+a.entry {
			t.Errorf("%q: %q gets %+v", a.entry, a.harmless, got)
		}
		if got := decideCommandsOf(t, p, a.attack); got.Mode != ModePrompt {
			t.Errorf("%q lets %q run: %+v", a.entry, a.attack, got)
		}
	}
}

func TestEntriesOfCommandsThatAreNone(t *testing.T) {
	for _, entry := range []string{
		"", "*", " *", "make*x;", "make; id", "make && x", "make > x", "make $X", "make ~", "CC=x make", "make\nid", "make\u202e",
		"env *", "sudo *", "xargs *", "sh *", "bash -c *", "python *", "python3 *", "python3 -m *", "python3 script.py *", "find *", "tar *", "npx *",
		"tsx *", "hyperfine *", "nodemon *", "uv run *", "npm exec *", "npm x *", "git config *", "git submodule foreach *", "go run *", "go tool *", "docker run *", "docker exec x *",
		"sqlite3 *", "psql *", "logsave *", "ldd *", "mysql *", "valgrind *", "uv run sh *", "npx env *", "timeout 60 *", "ssh host *", "sh -c 'make test'", "eval make", "python3 -m pdb *",
	} {
		if err := (Policy{Commands: map[string]Mode{entry: ModeAuto}}).Validate(); err == nil {
			t.Errorf("%q is taken", entry)
		}
	}
	for _, mode := range []Mode{"", "yes", ModePromptOnce} {
		if err := (Policy{Commands: map[string]Mode{"make": mode}}).Validate(); err == nil {
			t.Errorf("mode %q is taken", mode)
		}
	}
	for entry, mode := range map[string]Mode{"env *": ModePrompt, "sudo *": ModeDeny, "python3 *": ModeDeny, "sh run.sh": ModeAuto, "python3 run.py": ModeAuto} {
		if err := (Policy{Commands: map[string]Mode{entry: mode}}).Validate(); err != nil {
			t.Errorf("%q: %v", entry, err)
		}
	}
}

// A prompt or deny finds its command anywhere. The entry with the most words
// decides, but a deny wins.
func TestPrecedenceOfEntriesOfCommands(t *testing.T) {
	for _, tt := range []struct {
		name     string
		change   func(*Policy)
		commands []string
		want     Mode
		entry    string
	}{
		{"more words decide", nil, []string{"git push origin"}, ModePrompt, "git push *"},
		{"the rest of the wide entry", nil, []string{"git status"}, ModeAuto, "git *"},
		{"a phrase before a wide entry", nil, []string{"npm run deploy"}, ModeDeny, "npm run deploy"},
		{"in a list", nil, []string{"cd x && npm run deploy"}, ModeDeny, "npm run deploy"},
		{"behind sudo", nil, []string{"sudo npm run deploy"}, ModeDeny, "npm run deploy"},
		{"in a script of sh", nil, []string{"sh -c 'npm run deploy'"}, ModeDeny, "npm run deploy"},
		{"by another path", nil, []string{"/usr/bin/npm run deploy"}, ModeDeny, "npm run deploy"},
		{"behind options of git", nil, []string{"git -c a=b push"}, ModePrompt, "git push *"},
		{"in quotes", nil, []string{`n"p"m run deploy`}, ModeDeny, "npm run deploy"},
		{"not as an argument", nil, []string{"echo npm run deploy"}, ModePrompt, ""},
		{"too long to search", nil, []string{"true " + strings.Repeat("x ", maxDangerousBytes)}, ModeDeny, "npm run deploy"},
		{"all commands are auto", nil, []string{"git status", "git log"}, ModeAuto, "git *"},
		{"one command is not", nil, []string{"git status", "id"}, ModePrompt, ""},
		{"one command is denied", nil, []string{"git status", "npm run deploy"}, ModeDeny, "npm run deploy"},
		{"no command", nil, nil, ModePrompt, ""},
		{"the tool prompts", func(p *Policy) { p.Tools = map[string]Mode{"shell": ModePrompt} }, []string{"git status"}, ModeAuto, "git *"},
		{"the tool is denied", func(p *Policy) { p.Tools = map[string]Mode{"shell": ModeDeny} }, []string{"git status"}, ModeDeny, ""},
		{"the class is denied", func(p *Policy) { p.Classes[tools.ClassExecute] = ModeDeny }, []string{"git status"}, ModeDeny, ""},
		{"all commands are auto, one prompts", func(p *Policy) { p.Classes[tools.ClassExecute] = ModeAuto }, []string{"git push"}, ModePrompt, "git push *"},
		{"requirements prompt", func(p *Policy) {
			p.Tighten = []Policy{{Name: "requirements", Classes: map[tools.Class]Mode{tools.ClassExecute: ModePrompt}}}
		}, []string{"git status"}, ModePrompt, ""},
		{"a project prompts about the command", func(p *Policy) {
			p.Tighten = []Policy{{Classes: map[tools.Class]Mode{tools.ClassExecute: ModeAuto}, Commands: map[string]Mode{"git status": ModePrompt}}}
		}, []string{"git status"}, ModePrompt, "git status"},
		{"dangerous", func(p *Policy) { p.Dangerous = []string{"git-status"} }, []string{"git status"}, ModePrompt, ""},
		{"dangerous by another layer", func(p *Policy) {
			p.Tighten = []Policy{{Classes: map[tools.Class]Mode{tools.ClassExecute: ModeAuto}, Dangerous: []string{"git-status"}}}
		}, []string{"git status"}, ModePrompt, ""},
		{"no prompts", func(p *Policy) { p.NoPrompts = true }, []string{"git push"}, ModeDeny, "git push *"},
	} {
		p := promptingPolicy(t, map[string]Mode{"git *": ModeAuto, "git push *": ModePrompt, "npm run *": ModeAuto, "npm run deploy": ModeDeny})
		if tt.change != nil {
			tt.change(&p)
		}
		if got := decideCommandsOf(t, p, tt.commands...); got.Mode != tt.want || got.Command != tt.entry {
			t.Errorf("%s: %+v, want %s by %q", tt.name, got, tt.want, tt.entry)
		}
	}
}

// A restriction also counts if a command doesn't tell which program it runs, but
// not for commands that do.
func TestRestrictionsOfComputedCommands(t *testing.T) {
	p := promptingPolicy(t, map[string]Mode{"rm *": ModeDeny, "npm run deploy": ModeDeny, "git push *": ModePrompt})
	p.Classes[tools.ClassExecute] = ModeAuto
	for _, command := range []string{
		"rm a", "npm run deploy", "x=rm; $x a", "x=rm; ${x} a", `x=rm; "$x" a`, "{rm,a}", "/bin/r? a", "/bin/r[m] a", "$(echo rm) a", "`echo rm` a", `$'\x72m' a`, "rm\\\n a",
		"trap 'rm a' EXIT", "trap '$x a' EXIT", "eval $x", "eval '$x'", "eval 'x=rm; $x a'", `sh -c "$x"`, "bash -lc '$x a'", "sh <<E\nrm a\nE", "sh <<E\n$x a\nE", "sh <<<'rm a'", "sudo sh <<E\nrm a\nE",
		"cat <<E | sh\nrm a\nE", "echo rm a | bash", "echo rm a | sudo bash -s", "cat x | parallel", "bash <(echo rm a)", ". <(echo rm a)", "source <(cat)",
		"sudo $x a", "env A=b $x a", "timeout 5 $x", "xargs $x", "find . -exec $x {} +", "find . -exec rm {} +", "alias x=rm\nx a", "hash -p /bin/rm ls; ls a",
		`f() { "$@"; }; f rm a`, "mapfile -C 'rm a' -c 1 x", "env " + strings.Repeat("A=b ", 70) + "rm a", "docker run " + strings.Repeat("-e A=1 ", 40) + "image rm a", "x; (",
		"npm run $x", "npm $x", "npm run deploy $x", "npm {run,deploy}", "npm run dep*", "npm ru[n] deploy", "npm run d?ploy",
		"env -S'rm a'", "env --split-string='rm a'", "cat x | busybox sh", "cat x | sh /dev/stdin", "{ sh; } <<E\nrm a\nE", "(sh) <<<'rm a'", "echo rm a > >(sh)",
		"exec <<<'rm a'; sh", "f() { sh; }; echo rm a | f", ". /dev/stdin <<<'rm a'", "source /dev/stdin <<<'rm a'", "echo rm a | . /dev/fd/0", "coproc sh; echo rm a >&${COPROC[1]}", "exec 0< <(echo rm a); bash -x", "sh < <(echo rm a)", "sh 3<x", "sh </dev/fd/3",
		"git -c alias.x='!rm a' x", "git -c core.pager='rm a' log", "git -c core.pager=$x log", "git -c alias.x='!$y a' x", "PAGER='rm a' git log", "PAGER=$x git log", "export GIT_EDITOR='rm a'; git commit", "env EDITOR='rm a' git commit",
		"GIT_SSH_COMMAND='rm a' git fetch", "LESSOPEN='|rm a' less f", "BASH_ENV='$(rm a)' sh x.sh", "PROMPT_COMMAND='rm a' bash x.sh", "git submodule foreach 'rm a'", "git bisect run rm a", "git rebase -x 'rm a' main",
		"tar -I 'rm a' -cf x y", "tar -Irm -cf x y", "tar -cf x y --use-compress-program='rm a'", "tar -xf x --to-command 'rm a'", "tar -cf x y --checkpoint=1 --checkpoint-action=exec='rm a'", "tar -I \"$x\" -cf a b", "sort --compress-program=rm f", "fd -x rm a",
		"find . -ok rm {} +", "uv run rm a", "uv run --with x rm a", "npx rm a", "npm exec rm a", "npm exec -c 'rm a'", "npm exec --call='rm a'", "pnpm dlx rm a", "yarn exec 'rm a'", "uv run $x a", "poetry run npm run deploy", "vim -c '!rm a' f", "ssh -o ProxyCommand='rm a' h", "ssh -oProxyCommand='rm a' h",
		"rsync -e 'rm a' x y", "rsync --rsh='rm a' x y", "make SHELL='rm a'", "test -v 'a[$(rm a)]'", "[[ -v 'a[$(rm a)]' ]]", "printf -v 'a[$(rm a)]' x", "let 'a[$(rm a)]=1'", "declare 'a[$(rm a)]=1'", `x='a[$(rm a)]'; ((x))`, "x='$(rm a)'; : ${x@P}", "x=`cat f`; echo ${x@P}",
		`test -v a[\$\(rm\ a\)]`, `test -v "a[\$(rm a)]"`, "npm --silent run deploy", "npm --prefix dir run deploy", "npm run --silent deploy", "npm --silent $x deploy",
	} {
		if got := decideCommandsOf(t, p, command); got.Mode != ModeDeny {
			t.Errorf("%q: %+v", command, got)
		}
	}
	for _, command := range []string{
		"[ -f a ] && cat $x", `git log "$x"`, "make CC=$CC", "for f in *.o; do cp $f ..; done", "ls | xargs -I{} cp {} ..", "find . -name '*.o' -exec cp {} .. ';'",
		"sh run.sh $x", "sh $x", `. "$HOME/.cargo/env"`, "awk '{print $1}' $x", "python3 - <<E\nprint(1)\nE", "cat a | python3 -m json.tool", "npm run build $x", "npm ci", "trap 'echo $x' EXIT",
		"bash -c 'echo $x'", "npm test *", "cat a | busybox wc", "{ cat; } <a", "echo a > >(cat)", "sed -i s/a/$x/ f", "echo $(date)", "hash -r", "~/bin/x $x", "cat a | sh run.sh", "command -v ls",
		"command -v sh", "which bash", "bash --version", "bash -x run.sh", "sh <run.sh", "apt-get install bash", "PAGER=cat git log", "GIT_EDITOR=true git rebase --continue", "A=$B make test", "git -c user.name=\"$NAME\" commit -m 'rm a'", "grep -i rm f", "grep -e \"$x\" f",
		"sed -i \"s/$a/b/\" f", "gcc -c $f", "tar -I zstd -cf x y", "tar -czf x.tgz $d", "uv run pytest -k 'a or b'", "cargo run -- $x", "npm run clean", "docker compose exec web ls $x", "test -v 'a[1]'", "awk '{print $NF}' f", "printf -v x %s a", "echo ${x@Q}", "npm --silent run build",
		"gcc -I1 -I2 -I3 -I4 -I5 -I6 -I7 -I8 -I9 -I10 x.c", "docker run -e A=1 -e B=2 -e C=3 -e D=4 -e E=5 -e F=6 -e G=7 -e H=8 -e I=9 -e J=10 image",
		"make CC=gcc", "curl -X POST -d a=$b h", "python3 -c 'print(1)'", "go test -run $x ./...", "git commit -m \"a $x\"", "cat <<E >f\n$x\nE", "find . -name .", "sudo du -s .", "rsync -e ssh x y", "export PATH=$HOME/bin:$PATH", "declare -A a=([x]=1)", "ls | xargs bash run.sh",
	} {
		if got := decideCommandsOf(t, p, command); got.Mode != ModeAuto {
			t.Errorf("control: %q: %+v", command, got)
		}
	}
	if got := decideCommandsOf(t, p, "$x a", "git push"); got.Mode != ModeDeny || got.Command == "git push *" {
		t.Errorf("the strictest does not decide: %+v", got)
	}
}

// An entry with * lets run only one command of visible literal words that begins
// like the entry, without an unknown option, an assignment or a file of words.
func FuzzEntriesOfCommands(f *testing.F) {
	for _, a := range attacks {
		f.Add(a.entry, a.harmless)
		f.Add(a.entry, a.attack)
	}
	f.Fuzz(func(t *testing.T, entry, command string) {
		p := promptingPolicy(t, map[string]Mode{entry: ModeAuto})
		if p.Validate() != nil || !utf8.ValidString(command) || decideCommandsOf(t, p, command).Mode != ModeAuto {
			return
		}
		words, err := plainWords(command)
		if err != nil {
			t.Fatalf("%q lets %q run: %v", entry, command, err)
		}
		rule, _ := parseCommandRule(entry, ModeAuto)
		for i, w := range words {
			switch {
			case i < len(rule.words) && w != rule.words[i]:
				t.Fatalf("%q lets %q run", entry, command)
			case i < len(rule.words):
			case !rule.open, strings.Contains(w, "=") && w[0] != '-', strings.HasPrefix(w, "@"), strings.HasPrefix(w, "+"):
				t.Fatalf("%q lets %q run", entry, command)
			}
		}
		if found, _ := p.DangerousIn(command); found != "" {
			t.Fatalf("%q lets the dangerous %q run", entry, command)
		}
	})
}

// FuzzRestrictions checks that a denied command is found whatever stands around it.
func FuzzRestrictions(f *testing.F) {
	f.Add("git -c alias.x='!y' x", "uv run z")
	f.Add("x='a[$(b)]'; exec <<<c", "tar -I 'd e' f")
	f.Fuzz(func(t *testing.T, before, after string) {
		p := promptingPolicy(t, map[string]Mode{"rm *": ModeDeny})
		p.Classes[tools.ClassExecute] = ModeAuto
		if got := decideCommandsOf(t, p, before+"\nrm a\n"+after); got.Mode != ModeDeny && !strings.Contains(before, "<<") && !strings.ContainsAny(before, "'\"`\\#$({") {
			t.Errorf("%q, %q: %+v", before, after, got)
		}
	})
}
