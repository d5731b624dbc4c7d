package policy

import (
	"path"
	"slices"
	"strings"

	"mvdan.cc/sh/v3/syntax"

	"github.com/caisson-run/caisson/tools/workspace"
)

// scriptSearch collects what scripts run.
type scriptSearch struct {
	// names are words that name what is run: commands with a slash, and arguments
	// of shells and interpreters. gaps describe what else is run.
	names, gaps []string
	// hidden also searches what [hiddenScripts] finds. scripts counts the scripts.
	hidden  bool
	scripts int
	// moved reports that a command changes the directory, so that relative names
	// may mean other files.
	moved bool
	// computed reports that what a command runs is computed by the shell, or by a
	// program that it pipes into, so that the command's text doesn't tell.
	computed bool
}

// tooDeep is the gap for a script that is not searched.
const tooDeep = "the scripts that it runs: one is too long, or nested too deeply"

func (s *scriptSearch) searchScript(text string, depth int) {
	if s.scripts++; depth > maxDangerousDepth || len(text) > maxDangerousBytes || s.scripts > maxDangerousSteps {
		s.addGap(tooDeep)
		s.computed = true
		return
	}
	file, err := syntax.NewParser(syntax.Variant(syntax.LangBash)).Parse(strings.NewReader(markControls(text)), "")
	if depth == 0 && err != nil {
		s.computed = true
		s.addGap("the scripts that it runs: it can't be parsed whole")
	}
	syntax.Walk(file, func(n syntax.Node) bool { // after an error, the part before it
		if s.hidden {
			for _, script := range hiddenScripts(n) {
				s.searchScript(script, depth+1)
			}
		}
		switch n := n.(type) {
		case *syntax.Stmt:
			s.searchInput(n, depth)
		case *syntax.BinaryCmd:
			if n.Op == syntax.Pipe || n.Op == syntax.PipeAll {
				s.searchPipe(n.Y)
			}
		case *syntax.ProcSubst:
			if n.Op == syntax.CmdOut {
				for _, stmt := range n.Stmts {
					s.searchPipe(stmt)
				}
			}
		case *syntax.Assign:
			if n.Name != nil && slices.Contains([]string{"PATH", "LD_PRELOAD", "LD_LIBRARY_PATH", "BASH_ENV", "ENV"}, n.Name.Value) {
				s.addGap("what " + n.Name.Value + " leads to")
			}
		case *syntax.ParamExp: // ${x@P} expands the value of x
			s.computed = s.computed || n.Exp != nil && n.Exp.Op == syntax.OtherParamOps && n.Exp.Word != nil && wordText(n.Exp.Word) == "P"
		case *syntax.CallExpr:
			if len(n.Args) > 0 {
				s.searchCall(n.Args, depth)
			}
		}
		return true
	})
}

func (s *scriptSearch) addGap(text string) { s.gaps = append(s.gaps, text) }

func (s *scriptSearch) addName(word string) {
	if word != "" && len(word) <= workspace.MaxPathBytes && !strings.HasPrefix(word, "-") && !strings.ContainsAny(word, "\x00\n") {
		s.names = append(s.names, word)
	}
}

// searchInput adds the file that a shell or interpreter reads (sh <run.sh), and
// searches here-documents that a shell reads.
func (s *scriptSearch) searchInput(stmt *syntax.Stmt, depth int) {
	for _, script := range inputScripts(stmt) {
		s.searchScript(script, depth+1)
	}
	call, ok := stmt.Cmd.(*syntax.CallExpr)
	if !ok && len(stmt.Redirs) > 0 { // { sh; } <file
		s.searchPipe(stmt)
	}
	if !ok || len(call.Args) == 0 || !isRunner(wordText(call.Args[0])) {
		return
	}
	given := false
	for _, r := range stmt.Redirs {
		text := ""
		if r.Op == syntax.RdrIn {
			text = wordText(r.Word)
			s.addName(text)
			s.searchExpansion(r.Word)
		}
		given = given || (r.N == nil || r.N.Value == "0") && (r.Op == syntax.RdrIn || r.Hdoc != nil || r.Op == syntax.WordHdoc) && !isDevice(text) && !strings.HasPrefix(text, "<(")
	}
	words := wordTexts(call.Args)
	if takesData(path.Base(words[0])) || words[0] == "command" && len(words) > 1 && strings.HasPrefix(words[1], "-") {
		words = words[:1]
	}
	// It may also read what another command, or an earlier exec, leaves it.
	name := readsProgram(words)
	s.computed = s.computed || computesProgram(name) && (!given || !isShell(name))
}

func (s *scriptSearch) searchPipe(stmt *syntax.Stmt) {
	syntax.Walk(stmt, func(n syntax.Node) bool {
		if call, ok := n.(*syntax.CallExpr); ok {
			if name := readsProgram(wordTexts(call.Args)); name != "" {
				s.addGap("what " + name + " reads from a pipe")
				s.computed = s.computed || computesProgram(name)
			}
		}
		return true
	})
}

func (s *scriptSearch) searchCall(args []*syntax.Word, depth int) {
	words := wordTexts(args)
	name := path.Base(words[0])
	// An alias is another name for a program.
	s.computed = s.searchExpansion(args[0]) && strings.ContainsAny(words[0], "$`*?[{<\\") || name == "alias" || name == "hash" && slices.Contains(words, "-p") ||
		len(words) > maxRunnerWords && (isRunner(words[0]) || launchesAt(words, 1) || launchesAt(words, 2)) || s.computed
	if strings.Contains(words[0], "/") {
		s.addName(words[0])
	}
	if buildsProjects(name) {
		s.addGap("the files that " + name + " runs")
	}
	if slices.Contains([]string{"cd", "pushd", "popd"}, name) {
		s.moved = true
	}
	if !isRunner(words[0]) {
		return
	}
	s.searchRunner(args, words)
	for i, word := range words[1:min(len(words), maxRunnerWords)] {
		s.addName(word)
		if buildsProjects(word) && !takesNames(name) {
			s.addGap("the files that " + word + " runs")
		}
		if takesScripts(name) && strings.ContainsAny(word, " \n;&|") || name == "eval" || name == "trap" || words[i] == "-c" {
			s.searchScript(word, depth+1)
		}
	}
}

// searchRunner handles what a command that runs others does not name: expansions up
// to its script, and an interpreter's modules.
func (s *scriptSearch) searchRunner(args []*syntax.Word, words []string) {
	program := ""
	for i, word := range words[:min(len(words), maxRunnerWords)] {
		behind := words[max(i-1, 0)]
		if takesData(path.Base(words[0])) {
			s.computed = strings.HasPrefix(behind, "-exec") && s.searchExpansion(args[i]) || s.computed // of find
			continue
		}
		if s.searchExpansion(args[i]) && (program == "" || strings.HasPrefix(word, "<(") || isCluster(behind) && strings.Contains(behind, "c")) {
			s.computed = true // not a file for the program
		}
		switch base := path.Base(word); {
		case program != "" && !strings.HasPrefix(word, "-"):
			return // the rest is for the script
		case loadsModules(base):
			s.addGap("the modules that " + base + " loads")
			program = base
		case isShell(base) || base == "." || base == "source":
			program = base
		case word == "-C" || strings.HasPrefix(word, "--chdir"):
			s.moved = true
		}
	}
}

// searchExpansion reports whether a word stands for something other than its text,
// and adds a gap if it does.
func (s *scriptSearch) searchExpansion(w *syntax.Word) bool {
	if wordText(w) == "[" {
		return false
	}
	for i, part := range w.Parts {
		static := false
		switch part := part.(type) {
		case *syntax.Lit:
			static = !strings.ContainsAny(strings.ReplaceAll(part.Value, "{}", ""), "*?[{") && (i > 0 || !strings.HasPrefix(part.Value, "~"))
		case *syntax.SglQuoted:
			static = !part.Dollar
		case *syntax.DblQuoted:
			static = !slices.ContainsFunc(part.Parts, func(p syntax.WordPart) bool { _, ok := p.(*syntax.Lit); return !ok })
		}
		if !static {
			var text strings.Builder
			_ = syntax.NewPrinter().Print(&text, w) // into memory
			s.addGap("what " + text.String() + " stands for")
			return true
		}
	}
	return false
}

// computesProgram reports whether a program runs the commands that it reads.
func computesProgram(name string) bool {
	return isShell(name) || slices.Contains([]string{".", "source", "parallel"}, name)
}

// isDevice reports whether a file is in /dev or /proc, so that it may be a pipe that
// another command writes to.
func isDevice(name string) bool {
	return strings.HasPrefix(name, "/dev/") || strings.HasPrefix(name, "/proc/")
}

// readsProgram returns the shell or interpreter in a command that reads its program
// from standard input, or "".
func readsProgram(words []string) string {
	for i, word := range words {
		base := path.Base(word)
		if base == "xargs" || base == "parallel" && !slices.Contains(words, ":::") {
			return base
		}
		if (word == "." || word == "source") && i+1 < len(words) && isDevice(words[i+1]) {
			return word
		}
		if !isShell(base) && !loadsModules(base) {
			continue
		}
		for _, arg := range words[i+1:] {
			switch {
			case arg == "-" || arg == "-s" || isDevice(arg) || isShell(path.Base(arg)):
				return base
			case !strings.HasPrefix(arg, "-") || arg == "--version" || arg == "--help" || strings.HasPrefix(arg, "-c") || strings.HasPrefix(arg, "-e") || strings.HasPrefix(arg, "-m"):
				return ""
			}
		}
		return base
	}
	return ""
}

func isShell(name string) bool {
	return slices.Contains([]string{"sh", "bash", "dash", "ash", "zsh", "ksh", "fish", "csh", "tcsh", "busybox", "toybox"}, name)
}

// loadsModules reports whether an interpreter loads modules from its working
// directory.
func loadsModules(name string) bool {
	return slices.Contains([]string{"python", "pypy", "node", "nodejs", "bun", "deno", "perl", "ruby", "php", "lua", "luajit", "julia", "Rscript", "java", "tclsh"}, strings.TrimRight(name, "0123456789.-"))
}

// takesData reports whether a command that can run others mostly has other
// arguments.
func takesData(name string) bool {
	return takesNames(name) || slices.Contains([]string{
		"awk", "bind", "compgen", "complete", "find", "gawk", "mapfile", "mawk", "nawk", "readarray", "scp", "sed", "set", "sftp", "shopt", "tar", "unalias",
	}, name)
}

// buildsProjects reports whether a command runs what project files say.
func buildsProjects(name string) bool {
	return slices.Contains([]string{
		"ant", "bazel", "bun", "bundle", "cargo", "cmake", "composer", "ctest", "dotnet", "go", "gradle", "gradlew", "just", "make", "meson", "mvn", "mvnw", "ninja",
		"npm", "npx", "nox", "pnpm", "poetry", "pre-commit", "pytest", "rake", "sbt", "task", "tox", "uv", "yarn",
	}, name)
}
