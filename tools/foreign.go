package tools

import (
	"slices"
	"strings"
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
