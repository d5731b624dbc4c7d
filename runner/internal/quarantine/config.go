package quarantine

import (
	"context"
	"crypto/sha256"
	"fmt"
	"os"
	"path"
	"regexp"
	"slices"
	"strings"
	"sync"

	"github.com/caisson-run/caisson/tools/workspace"
)

// A configuration can make git obey or run files in the workspace, where commands can write:
// included configuration, a directory of hooks, programs of filters, drivers and the like. Such
// files are noted when a session begins. If they differ at its end, they are quarantined.

// obeyedFile is the former state of such a file.
type obeyedFile struct {
	state string
	// why names the configuration's file and key.
	why string
}

const (
	maxIncludes = 10  // git's own bound (MAX_INCLUDE_DEPTH in config.c)
	maxObeyed   = 500 // files that one configuration may name
	maxScripts  = 20  // listed keys
)

// shellSyntax matches commands whose words don't tell which files they use. It doesn't match
// git's placeholders.
var shellSyntax = regexp.MustCompile("[|&;<>()$`\\\\\"'*?{}!\\[\\]\n]|^\\S*=")

// gitCommands matches the keys, in lower case, whose values git runs without being asked,
// unlike aliases and tools.
var gitCommands = sync.OnceValue(func() *regexp.Regexp {
	return regexp.MustCompile(`^(core\.(fsmonitor|sshcommand|editor|pager|askpass|gitproxy|alternaterefscommand)|sequence\.editor|` +
		`diff\.external|diff\..*\.(command|textconv)|merge\..*\.driver|filter\..*\.(clean|smudge|process)|` +
		`gpg\.(.*\.)?program|gpg\.ssh\.defaultkeycommand|credential\.(.*\.)?helper|pager\..*|interactive\.difffilter|` +
		`uploadpack\.packobjectshook|remote\..*\.(uploadpack|receivepack)|trailer\..*\.(command|cmd)|submodule\..*\.update)$`)
})

var gitHooks = strings.Fields("applypatch-msg pre-applypatch post-applypatch pre-commit pre-merge-commit prepare-commit-msg commit-msg post-commit " +
	"pre-rebase post-checkout post-merge pre-push pre-receive update proc-receive post-receive post-update reference-transaction push-to-checkout " +
	"pre-auto-gc post-rewrite sendemail-validate fsmonitor-watchman post-index-change")

// addObeyed adds the files that a repository's configurations name.
func (s *scanner) addObeyed(ctx context.Context, repo string, configs []string, files map[string]obeyedFile) {
	for _, config := range configs {
		s.addConfig(ctx, worktreeOf(repo, config), config, maxIncludes, files)
	}
}

// worktreeOf returns the directory in which git runs hooks and commands.
func worktreeOf(repo, config string) string {
	if dir := path.Dir(config); !isNamed(path.Base(dir), ".git") && isNamed(path.Base(repo), ".git") && strings.HasPrefix(dir, repo+"/modules/") {
		return path.Join(path.Dir(repo), strings.TrimPrefix(dir, repo+"/modules/"))
	}
	if isNamed(path.Base(repo), ".git") {
		return path.Dir(repo)
	}
	return repo
}

func (s *scanner) addConfig(ctx context.Context, worktree, config string, depth int, files map[string]obeyedFile) {
	file, err := s.reader.ReadFile(ctx, config, 0, fingerprintBytes)
	if err != nil || depth == 0 {
		return
	}
	room := maxObeyed
	note := func(p, key string) {
		if _, known := files[p]; !known && room > 0 && p != ".git" && !strings.HasPrefix(p, ".git/") {
			room--
			files[p] = obeyedFile{state: s.fileState(ctx, p), why: key + " in " + config}
		}
	}
	for key, value := range configValues(string(file.Data)) {
		switch {
		case key == "include.path" || strings.HasPrefix(key, "includeif.") && strings.HasSuffix(key, ".path"):
			if p, ok := s.resolveValue(path.Dir(config), value); ok {
				note(p, key)
				s.addConfig(ctx, worktree, p, depth-1, files)
			}
		case key == "core.hookspath":
			if dir, ok := s.resolveValue(worktree, value); ok {
				s.noteHooks(ctx, dir, func(p string) { note(p, key) })
			}
		case gitCommands().MatchString(key):
			if shellSyntax.MatchString(value) {
				s.addScript(key + " in " + config)
			}
			for _, word := range strings.FieldsFunc(value, func(r rune) bool { return strings.ContainsRune(" \t\n'\"`$(){};&|<>=!,", r) }) {
				if p, ok := s.resolveValue(worktree, word); ok && s.isProgram(ctx, word, p) {
					note(p, key)
				}
			}
		}
	}
}

// addScript keeps the name of a key whose value is shell text, but not the value, which may
// hold a secret.
func (s *scanner) addScript(name string) {
	switch {
	case slices.Contains(s.scripts, name):
	case len(s.scripts) < maxScripts:
		s.scripts = append(s.scripts, name)
	default:
		s.moreScripts++
	}
}

// isProgram reports whether a word of a command may name the file p of the workspace: the file
// exists, or nothing is at p and the word contains a slash.
func (s *scanner) isProgram(ctx context.Context, word, p string) bool {
	info, err := s.reader.Stat(ctx, p)
	if err != nil {
		return strings.Contains(word, "/")
	}
	return info.Type == workspace.TypeFile
}

// noteHooks notes the files in a directory of hooks, since hooks may run one another, and the
// names of all hooks, even missing ones.
func (s *scanner) noteHooks(ctx context.Context, dir string, note func(p string)) {
	for _, name := range gitHooks {
		note(path.Join(dir, name))
	}
	if list, _ := s.reader.List(ctx, dir, 1); len(list.Entries) <= maxObeyed/2 {
		for _, e := range list.Entries {
			if e.Type != workspace.TypeDir {
				note(e.Path)
			}
		}
	}
}

// resolveValue returns the path in the workspace that a value names, relative to dir.
func (s *scanner) resolveValue(dir, value string) (string, bool) {
	if rest, ok := strings.CutPrefix(value, "~/"); ok {
		home, err := os.UserHomeDir()
		if err != nil {
			return "", false
		}
		value = path.Join(home, rest)
	}
	switch {
	case value == "" || strings.HasPrefix(value, "~") || strings.HasPrefix(value, "%("):
		return "", false
	case !path.IsAbs(value):
		value = path.Join(dir, value)
	}
	p, err := s.reader.Relative(value)
	return p, err == nil && p != "."
}

// fileState returns a hash of a file and of the symlinks on its path, or "" if it can't be
// read.
func (s *scanner) fileState(ctx context.Context, p string) string {
	sum := sha256.New()
	f := &fingerprint{whole: true}
	for _, above := range append(parentDirs(p)[1:], p) {
		st, err := s.reader.StatEntry(ctx, above)
		if err != nil {
			break
		}
		if st.Type != workspace.TypeDir {
			fmt.Fprintf(sum, "%q %s\n", above, s.describeEntry(ctx, f, above, st))
		}
	}
	if !f.whole {
		return ""
	}
	return fmt.Sprintf("%x", sum.Sum(nil))
}

// changedObeyed calls quarantine with what to rename so that git does not obey a changed file:
// the file, or the symlink that leads to it.
func (s *scanner) changedObeyed(ctx context.Context, files map[string]obeyedFile, quarantine func(p, why string)) {
	for p, was := range files {
		if state := s.fileState(ctx, p); state != "" && state == was.state {
			continue
		}
		for _, above := range append(parentDirs(p)[1:], p) {
			st, err := s.reader.StatEntry(ctx, above)
			if err != nil {
				break // nothing is there to obey
			}
			if above == p || st.Type != workspace.TypeDir {
				quarantine(above, "git obeys or runs it ("+was.why+"), and it was changed")
				break
			}
		}
	}
}

// configValues returns the keys of a configuration, in lower case as section.name or
// section.subsection.name, and their values (git-config(1), Syntax).
func configValues(text string) func(yield func(key, value string) bool) {
	return func(yield func(key, value string) bool) {
		section := ""
		text = strings.ReplaceAll(text, "\r\n", "\n")
		for {
			text = strings.TrimSpace(text)
			switch {
			case text == "":
				return
			case text[0] == '#' || text[0] == ';':
				_, text, _ = strings.Cut(text, "\n")
				continue
			case text[0] == '[':
				section, text = cutSection(text[1:])
				continue
			}
			name, rest := text, ""
			if i := strings.IndexAny(text, "=\n"); i >= 0 {
				name, rest = text[:i], text[i:]
			}
			value := ""
			if strings.HasPrefix(rest, "=") {
				value, rest = cutValue(rest[1:])
			}
			text = rest
			if !yield(strings.ToLower(section+"."+strings.TrimSpace(name)), value) {
				return
			}
		}
	}
}

func cutSection(text string) (section, rest string) {
	quoted := false
	for i := 0; i < len(text); i++ {
		switch c := text[i]; {
		case c == '\\' && quoted:
			i++
		case c == '"':
			quoted = !quoted
		case c == '\n':
			return "", text[i:]
		case c == ']' && !quoted:
			name, sub, _ := strings.Cut(text[:i], " ")
			if sub = strings.Trim(strings.TrimSpace(sub), `"`); sub != "" {
				name += "." + sub
			}
			return strings.TrimSpace(name), text[i+1:]
		}
	}
	return "", ""
}

// cutValue cuts off a value, and returns it without quotes, escapes and comment.
func cutValue(text string) (value, rest string) {
	var out strings.Builder
	quoted, comment := false, false
	for i := 0; i < len(text); i++ {
		switch c := text[i]; {
		case c == '\n':
			return strings.TrimSpace(out.String()), text[i:]
		case comment:
		case c == '\\' && i+1 < len(text):
			i++
			switch text[i] {
			case '\n':
			case 'n':
				out.WriteByte('\n')
			case 't':
				out.WriteByte('\t')
			default:
				out.WriteByte(text[i])
			}
		case c == '"':
			quoted = !quoted
		case (c == '#' || c == ';') && !quoted:
			comment = true
		default:
			out.WriteByte(c)
		}
	}
	return strings.TrimSpace(out.String()), ""
}

// gitObeyed are the entries of a repository that git obeys or runs: configuration, what names
// other configuration, hooks, attributes, and the steps of unfinished operations
// (gitrepository-layout(5), githooks(5), git-rebase(1), git-am(1), git-cherry-pick(1)).
var gitObeyed = []string{
	"config", "config.worktree", "commondir", "gitdir", "hooks", "info", "modules", "worktrees", "remotes", "branches",
	"rebase-merge", "rebase-apply", "sequencer",
}

// gitUnfinished are the unfinished operations, which git can continue.
var gitUnfinished = []string{"rebase-merge", "rebase-apply", "sequencer"}

// The files of a repository that ordinary work writes, by their path in it. Git neither runs
// nor obeys them, provided that each is a regular file with a single name: through a symlink or
// a hard link, git would write to another file.
var (
	gitFiles = sync.OnceValue(func() *regexp.Regexp {
		return regexp.MustCompile(`^(` + strings.Join([]string{
			`HEAD`, `index`, `packed-refs`, `shallow`, `sharedindex\.[0-9a-f]+`, `gc\.log`, `gc\.pid`, `gitk\.cache`,
			`[A-Z][A-Z0-9_]*`, `addp-hunk-edit\.diff`, `ADD_EDIT\.patch`, // HEAD and the like, messages, bisection
			`refs/.+`, `logs/.+`, `lost-found/.+`, `reftable/.+`, `lfs/.+`, `annex/.+`, `fsmonitor--daemon/.+`,
			`objects/[0-9a-f]{2}/[0-9a-f]+`, `objects/(.*/)?\.?tmp[-_][^/]+`, `objects/pack/(pack-[^/]+|multi-pack-index[^/]*)`,
			`objects/info/(packs|commit-graph|commit-graphs/[^/]+)`, `objects/maintenance`, `info/(refs|packs)`,
		}, "|") + `)(\.lock)?$`)
	})
	gitDirs = sync.OnceValue(func() *regexp.Regexp {
		return regexp.MustCompile(`^(objects(/[0-9a-f]{2}|/pack|/info|/info/commit-graphs)?|(refs|logs|lost-found|reftable|lfs|annex|fsmonitor--daemon)(/.+)?|objects/tmp_[^/]+)$`)
	})
	// hgFiles and hgDirs are the same for Mercurial (hg help internals).
	hgFiles = sync.OnceValue(func() *regexp.Regexp {
		return regexp.MustCompile(`^(dirstate[^/]*|branch|bookmarks[^/]*|localtags|last-message\.txt|undo\.[^/]+|00changelog\.i|(w?cache|store|merge|strip-backup|shelved)/.+|shelvedstate|graftstate|updatestate|commit[^/]*\.txt)$`)
	})
	hgDirs = sync.OnceValue(func() *regexp.Regexp {
		return regexp.MustCompile(`^(w?cache|store|merge|strip-backup|shelved)(/.+)?$`)
	})
	hgLinks = []string{"wlock", "store/lock", "wcache/checklink"} // symlinks that hg makes and never follows
)

// mayDiffer reports whether ordinary work makes the entry, a file or a directory, in a
// repository's directory, so that it may differ from before.
func mayDiffer(repository, rest string, dir bool) bool {
	if isNamed(path.Base(repository), ".hg") {
		if dir {
			return hgDirs().MatchString(rest)
		}
		return hgFiles().MatchString(rest)
	}
	names := strings.Split(rest, "/")
	switch names[0] {
	case "worktrees":
		return len(names) > 2 && mayDiffer(repository, strings.Join(names[2:], "/"), dir)
	case "modules":
		// Names of submodules may contain slashes, and be any name.
		for i := 2; i < len(names); i++ {
			if slices.Contains(gitObeyed, names[i]) && names[i-1] != "objects" {
				return false
			}
		}
		for i := 2; i < len(names); i++ {
			if mayDiffer(repository, strings.Join(names[i:], "/"), dir) {
				return true
			}
		}
		return false
	}
	if dir {
		return gitDirs().MatchString(rest)
	}
	return gitFiles().MatchString(rest)
}

// isNamed reports whether name is one of names. It ignores case, because some file systems do.
func isNamed(name string, names ...string) bool {
	return slices.ContainsFunc(names, func(n string) bool { return strings.EqualFold(n, name) })
}
