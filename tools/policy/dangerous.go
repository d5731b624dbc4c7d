package policy

import (
	"errors"
	"fmt"
	"path"
	"slices"
	"strings"

	"github.com/caisson-run/caisson/tools"
)

// Dangerous-command patterns warn people; they are no boundary, since a command can
// be written to get past them, and the sandbox holds it anyway. A pattern is a
// command name and words that must be among its arguments, in any order:
//
//	rm -r|-R|--recursive /     each word must be there; "|" separates alternatives
//	mkfs*                      "*" matches anything, "\*" a star
//	git-push -d !-n            "git-push" is git push, with any options in between; "!" must not be there
//	> /dev/sd*                 the target of a redirection
//
// A single-letter flag also matches in a cluster (-r in -rf), a long one with a
// value (--force in --force=x). Words are compared as parsed: without quotes, but
// expansions as they are written. A word with a slash is also compared in its
// shortest spelling: // and /x/.. are /.

// maxDangerousBytes bounds the command that is searched; a longer one counts as
// dangerous. The parser takes 64 MiB of stack for the worst 16 KiB.
const maxDangerousBytes = 16 << 10

const maxFoundBytes = 120

// maxDangerousDepth bounds scripts in the arguments of sh -c and eval.
const maxDangerousDepth = 4

// DangerousCommands returns the built-in patterns: commands that destroy more than
// a project's own files, or work that can't be recovered. Long options are also
// matched by their unambiguous beginnings, which getopt_long and git accept.
func DangerousCommands() []string {
	const device = `/dev/sd*|/dev/hd*|/dev/vd*|/dev/xvd*|/dev/nvme*|/dev/mmcblk*|/dev/md*|/dev/dm-*|/dev/mapper/*|/dev/disk*|/dev/rdisk*|/dev/mem|/dev/kmem|/dev/port`
	const system = `/|~|$HOME|${HOME:?}|/bin|/boot|/etc|/home|/lib|/lib64|/opt|/root|/sbin|/srv|/usr|/var|/workspace`
	// The contents of a directory matter as much as the directory.
	inside := strings.ReplaceAll(system, "|", `/\*|`) + `/\*`
	inside = `/\*` + strings.TrimPrefix(inside, `//\*`)
	return []string{
		`rm -r|-R|--r* ` + system + `|` + inside + `|$HOME/|.|./|..|../|../..|../../..|\*|.\*|./\*|../\*|$PWD|$PWD/\*|$(pwd)|$(pwd)/\*|.git|.git\*|.git/\*|*/.git|*/.git\*|*/.git/\*`,
		`rm --no*`,
		`find -delete`,
		`mkfs*`, `mke2fs`, `mkswap`, `wipefs`, `shred`, `blkdiscard`,
		`dd if=*`, `dd of=` + strings.ReplaceAll(device, "|", "|of="),
		`> ` + device + `|/proc/sysrq-trigger`, `tee ` + device + `|/proc/sysrq-trigger`,
		`chmod|chown|chgrp -R|--rec* ` + system + `|` + inside,
		`git-push -f|--forc*|--force-with-lease|-d|--de*|--m*|--pru*|+*|:* !-n|--dr*`,
		`git-reset --ha*`,
		`git-clean -f|--f* !-n|--dr*`,
		`git-checkout|git-switch -f|--f*|--discard-changes`,
		`git-checkout .|./|\*|:/`, `git-restore .|./|\*|:/ !-S|--st*`, `git-restore .|./|\*|:/ -W|--w*`,
		`git-stash clear|drop`, `git-branch -D`, `git-branch -d|--de* -f|--forc*`, `git-reflog expire|delete`, `git-update-ref -d`, `git-filter-*`,
		`shutdown`, `reboot`, `halt`, `poweroff`, `systemctl poweroff|reboot|halt|kexec`, `init|telinit 0|6`,
	}
}

// DangerMatcher finds dangerous commands in scripts. The zero value finds none.
type DangerMatcher struct{ patterns []dangerPattern }

// DangerMatcher returns a matcher with the patterns of all layers. /workspace in a
// pattern also stands for mountPoint. The error is from [Policy.Validate].
func (p Policy) DangerMatcher(mountPoint string) (DangerMatcher, error) {
	patterns, err := parseDangerous(p.dangerousPatterns(), mountPoint)
	if err != nil {
		return DangerMatcher{}, fmt.Errorf("check policy: %w", err)
	}
	return DangerMatcher{patterns}, nil
}

// Find returns the first dangerous command in a script, safe for display, or "".
func (m DangerMatcher) Find(script string) string {
	found, _ := tools.Display(dangerIn(m.patterns, script))
	return found
}

type dangerPattern struct{ words []dangerWord }

type dangerWord struct {
	alternatives []globPattern
	absent       bool // none of them may be there
}

// parseDangerous parses patterns. If mountPoint is not "", it is an alternative to
// /workspace.
func parseDangerous(patterns []string, mountPoint string) ([]dangerPattern, error) {
	parsed := make([]dangerPattern, 0, len(patterns))
	for _, text := range patterns {
		var p dangerPattern
		for word := range strings.FieldsSeq(text) {
			var w dangerWord
			if len(p.words) > 0 {
				word, w.absent = strings.CutPrefix(word, "!")
			}
			for a := range strings.SplitSeq(word, "|") {
				w.alternatives = append(w.alternatives, parseGlob(a))
				if rest, ok := strings.CutPrefix(a, "/workspace"); ok && mountPoint != "" && (rest == "" || rest[0] == '/') {
					w.alternatives = append(w.alternatives, parseGlob(globEscaper.Replace(mountPoint)+rest))
				}
			}
			p.words = append(p.words, w)
		}
		switch {
		case len(text) > 1<<10:
			return nil, fmt.Errorf("dangerous command pattern %.40q…: longer than 1024 bytes", text)
		case len(p.words) == 0:
			return nil, errors.New("dangerous command pattern is empty")
		case slices.ContainsFunc(p.words, func(w dangerWord) bool {
			return slices.ContainsFunc(w.alternatives, func(g globPattern) bool { return g.text == "" })
		}):
			return nil, fmt.Errorf("dangerous command pattern %q: an alternative is empty", text)
		case p.words[0].alternatives[0].text == ">" && len(p.words) != 2:
			return nil, fmt.Errorf("dangerous command pattern %q: one word must follow >", text)
		}
		parsed = append(parsed, p)
	}
	return parsed, nil
}

func (p dangerPattern) matchesCommand(name string, args []string) bool {
	if !slices.ContainsFunc(p.words[0].alternatives, func(g globPattern) bool { return g.match(name) }) {
		return false
	}
	for _, w := range p.words[1:] {
		if slices.ContainsFunc(args, func(arg string) bool { return argMatches(w.alternatives, arg) }) == w.absent {
			return false
		}
	}
	return true
}

func argMatches(alternatives []globPattern, arg string) bool {
	short := arg
	if strings.Contains(arg, "/") {
		short = path.Clean(arg)
	}
	for _, a := range alternatives {
		switch {
		case a.match(arg), a.match(short):
			return true
		case strings.HasPrefix(a.text, "--") && strings.HasPrefix(arg, a.text+"="):
			return true
		case len(a.text) == 2 && isCluster(a.text) && isCluster(arg) && strings.Contains(arg, a.text[1:]):
			return true
		}
	}
	return false
}

func isCluster(word string) bool {
	return strings.HasPrefix(word, "-") && !strings.HasPrefix(word, "--")
}

// globPattern matches a whole text, with anything between its parts.
type globPattern struct {
	text  string // as it was written
	parts []string
}

// globEscaper makes a pattern that matches only the text itself.
var globEscaper = strings.NewReplacer(`\`, `\\`, `*`, `\*`)

// parseGlob reads a pattern: "*" matches any text, a backslash escapes the next
// character.
func parseGlob(text string) globPattern {
	g := globPattern{text: text, parts: []string{""}}
	for i := 0; i < len(text); i++ {
		last := len(g.parts) - 1
		switch c := text[i]; {
		case c == '*':
			g.parts = append(g.parts, "")
			continue
		case c == '\\' && i+1 < len(text):
			i++
		}
		g.parts[last] += text[i : i+1]
	}
	return g
}

func (g globPattern) match(s string) bool {
	first, last := g.parts[0], g.parts[len(g.parts)-1]
	if len(g.parts) == 1 {
		return s == first
	}
	if len(s) < len(first)+len(last) || !strings.HasPrefix(s, first) || !strings.HasSuffix(s, last) {
		return false
	}
	s = s[len(first) : len(s)-len(last)]
	for _, part := range g.parts[1 : len(g.parts)-1] {
		_, rest, found := strings.Cut(s, part)
		if !found {
			return false
		}
		s = rest
	}
	return true
}
