package tools

import (
	"fmt"
	"slices"
	"strings"
)

// foreignTools maps names that models know from other programs, as plainName
// writes them, to the tools of ours that do the same.
var foreignTools = map[string][]Name{
	"bash": {NameShell}, "sh": {NameShell}, "exec": {NameShell}, "terminal": {NameShell}, "execute": {NameShell}, "executecommand": {NameShell}, "runcommand": {NameShell},
	"runshellcommand": {NameShell}, "runterminalcmd": {NameShell}, "runinterminal": {NameShell}, "localshell": {NameShell}, "python": {NameShell}, "powershell": {NameShell},
	"read": {NameReadFile}, "view": {NameReadFile}, "cat": {NameReadFile}, "open": {NameReadFile}, "openfile": {NameReadFile}, "viewfile": {NameReadFile}, "readtextfile": {NameReadFile},
	"write": {NameWriteFile}, "create": {NameWriteFile}, "createfile": {NameWriteFile}, "writetofile": {NameWriteFile}, "savefile": {NameWriteFile},
	"edit": {NamePatchFile}, "multiedit": {NamePatchFile}, "editfile": {NamePatchFile}, "strreplace": {NamePatchFile}, "replace": {NamePatchFile}, "replaceinfile": {NamePatchFile},
	"strreplaceeditor": {NamePatchFile, NameReadFile, NameWriteFile}, "strreplacebasededittool": {NamePatchFile, NameReadFile, NameWriteFile}, "texteditor": {NamePatchFile, NameReadFile, NameWriteFile},
	"delete": {NameDeleteFile}, "rm": {NameDeleteFile}, "remove": {NameDeleteFile}, "removefile": {NameDeleteFile}, "patch": {"apply_patch"},
	"ls": {"list_dir"}, "dir": {"list_dir"}, "listfiles": {"list_dir"}, "listdirectory": {"list_dir"}, "tree": {"list_dir"},
	"find": {"glob"}, "findfiles": {"glob"}, "filesearch": {"glob"}, "searchfiles": {"grep"}, "search": {"grep"}, "rg": {"grep"}, "ripgrep": {"grep"}, "grepsearch": {"grep"}, "codebasesearch": {"grep"},
	"webfetch": {"fetch"}, "fetchurl": {"fetch"}, "curl": {"fetch"}, "browse": {"fetch"}, "bashoutput": {"shell_output"}, "killshell": {"shell_kill"}, "killbash": {"shell_kill"},
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

// equivalents returns those of the offered tools that an unknown name is likely
// to mean: the same one in another spelling, or what other programs call so.
func equivalents(name Name, offered []Definition) []Name {
	plain := plainName(string(name))
	var found []Name
	for _, def := range offered {
		if plain == plainName(string(def.Name)) {
			found = append(found, def.Name)
		}
	}
	for _, own := range foreignTools[plain] {
		if slices.ContainsFunc(offered, func(def Definition) bool { return def.Name == own }) {
			found = append(found, own)
		}
	}
	return found
}

// hintAtTools says which tools to use for an unknown name; "" for none.
func hintAtTools(name Name, offered []Definition) string {
	var quoted []string
	for _, own := range equivalents(name, offered) {
		if wire, err := own.LLM(); err == nil {
			quoted = append(quoted, fmt.Sprintf("%q", wire))
		}
	}
	if len(quoted) == 0 {
		return ""
	}
	return " Use " + strings.Join(quoted, ", ") + " instead."
}
