package tools

import (
	"cmp"
	"slices"
	"strings"

	"github.com/agext/levenshtein"
)

// foreignTools maps names that models and skills know from other programs, as
// plainName writes them, to the tools of ours that do the same.
var foreignTools = map[string][]Name{
	"bash": {NameShell}, "sh": {NameShell}, "exec": {NameShell}, "terminal": {NameShell}, "execute": {NameShell}, "executecommand": {NameShell}, "runcommand": {NameShell},
	"runshellcommand": {NameShell}, "runterminalcmd": {NameShell}, "runinterminal": {NameShell}, "localshell": {NameShell}, "python": {NameShell}, "powershell": {NameShell},
	"read": {NameReadFile}, "view": {NameReadFile}, "cat": {NameReadFile}, "open": {NameReadFile}, "openfile": {NameReadFile}, "viewfile": {NameReadFile}, "readtextfile": {NameReadFile},
	"write": {NameWriteFile}, "create": {NameWriteFile}, "createfile": {NameWriteFile}, "writetofile": {NameWriteFile}, "savefile": {NameWriteFile},
	"edit": {NamePatchFile}, "multiedit": {NamePatchFile}, "editfile": {NamePatchFile}, "strreplace": {NamePatchFile}, "replace": {NamePatchFile}, "replaceinfile": {NamePatchFile},
	"strreplaceeditor": {NamePatchFile, NameReadFile, NameWriteFile}, "strreplacebasededittool": {NamePatchFile, NameReadFile, NameWriteFile}, "texteditor": {NamePatchFile, NameReadFile, NameWriteFile},
	"delete": {NameDeleteFile}, "rm": {NameDeleteFile}, "remove": {NameDeleteFile}, "removefile": {NameDeleteFile}, "patch": {"apply_patch"},
	"ls": {"list_dir"}, "list": {"list_dir"}, "dir": {"list_dir"}, "listfiles": {"list_dir"}, "listdirectory": {"list_dir"}, "tree": {"list_dir"},
	"find": {"glob"}, "findfiles": {"glob"}, "filesearch": {"glob"}, "searchfiles": {"grep"}, "search": {"grep"}, "rg": {"grep"}, "ripgrep": {"grep"}, "grepsearch": {"grep"}, "codebasesearch": {"grep"},
	"webfetch": {"fetch"}, "fetchurl": {"fetch"}, "curl": {"fetch"}, "browse": {"fetch"}, "bashoutput": {"shell_output"}, "killshell": {"shell_kill"}, "killbash": {"shell_kill"},
	"skill": {"load_skill"}, "activateskill": {"load_skill"},
}

// plainName returns a name without what spellings differ in.
func plainName(name string) string {
	return strings.Map(func(r rune) rune {
		if r == '_' || r == '-' || r == ' ' {
			return -1
		}
		return r
	}, strings.ToLower(name))
}

// IsSpelling reports whether a name that people or models write is likely to mean a
// tool: it is the tool's own in another spelling, or other programs call such a tool
// so.
func IsSpelling(written string, of Name) bool {
	plain := plainName(written)
	return plain == plainName(string(of)) || slices.Contains(foreignTools[plain], of)
}

// NearestNames returns at most most of the names, those first that are most like what was
// written in either form: whole, or without their servers. Likeness is from 0 to 1, by
// Levenshtein distance, and at least least.
func NearestNames(written string, names []Name, least float64, most int) []Name {
	const compared = 64 // bytes: the time grows with their square
	plain := func(s string) string {
		s = strings.ReplaceAll(strings.ToLower(s), "__", "/")
		return s[:min(len(s), compared)]
	}
	type near struct {
		name     Name
		likeness float64
	}
	want := plain(written)
	_, wantTool, _ := strings.Cut(want, "/")
	var all []near
	for _, name := range names {
		have := plain(string(name))
		likeness := levenshtein.Similarity(want, have, nil)
		if _, tool, ok := strings.Cut(have, "/"); ok {
			likeness = max(likeness, levenshtein.Similarity(cmp.Or(wantTool, want), tool, nil))
		}
		if likeness >= least {
			all = append(all, near{name, likeness})
		}
	}
	slices.SortStableFunc(all, func(a, b near) int { return cmp.Compare(b.likeness, a.likeness) })
	nearest := make([]Name, 0, min(len(all), most))
	for _, n := range all[:min(len(all), most)] {
		nearest = append(nearest, n.name)
	}
	return nearest
}
