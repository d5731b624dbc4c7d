package dispatch

import (
	"fmt"
	"slices"
	"strings"

	"github.com/caisson-run/caisson/tools"
)

// foreignTools maps names that models know from other programs, as plainName
// writes them, to the tools of ours that do the same.
var foreignTools = map[string][]tools.Name{
	"bash": {tools.NameShell}, "sh": {tools.NameShell}, "exec": {tools.NameShell}, "terminal": {tools.NameShell}, "execute": {tools.NameShell}, "executecommand": {tools.NameShell}, "runcommand": {tools.NameShell},
	"runshellcommand": {tools.NameShell}, "runterminalcmd": {tools.NameShell}, "runinterminal": {tools.NameShell}, "localshell": {tools.NameShell}, "python": {tools.NameShell}, "powershell": {tools.NameShell},
	"read": {tools.NameReadFile}, "view": {tools.NameReadFile}, "cat": {tools.NameReadFile}, "open": {tools.NameReadFile}, "openfile": {tools.NameReadFile}, "viewfile": {tools.NameReadFile}, "readtextfile": {tools.NameReadFile},
	"write": {tools.NameWriteFile}, "create": {tools.NameWriteFile}, "createfile": {tools.NameWriteFile}, "writetofile": {tools.NameWriteFile}, "savefile": {tools.NameWriteFile},
	"edit": {tools.NamePatchFile}, "multiedit": {tools.NamePatchFile}, "editfile": {tools.NamePatchFile}, "strreplace": {tools.NamePatchFile}, "replace": {tools.NamePatchFile}, "replaceinfile": {tools.NamePatchFile},
	"strreplaceeditor": {tools.NamePatchFile, tools.NameReadFile, tools.NameWriteFile}, "strreplacebasededittool": {tools.NamePatchFile, tools.NameReadFile, tools.NameWriteFile}, "texteditor": {tools.NamePatchFile, tools.NameReadFile, tools.NameWriteFile},
	"delete": {tools.NameDeleteFile}, "rm": {tools.NameDeleteFile}, "remove": {tools.NameDeleteFile}, "removefile": {tools.NameDeleteFile}, "patch": {"apply_patch"},
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

// equivalentTools returns those of the offered tools that an unknown name is likely
// to mean: the same one in another spelling, or what other programs call so.
func equivalentTools(name tools.Name, offered []tools.Definition) []tools.Name {
	plain := plainName(string(name))
	var found []tools.Name
	for _, def := range offered {
		if plain == plainName(string(def.Name)) {
			found = append(found, def.Name)
		}
	}
	for _, own := range foreignTools[plain] {
		if slices.ContainsFunc(offered, func(def tools.Definition) bool { return def.Name == own }) {
			found = append(found, own)
		}
	}
	return found
}

// hintAtTools names the tools to use for an unknown name, "" for none.
func hintAtTools(name tools.Name, offered []tools.Definition) string {
	var quoted []string
	for _, own := range equivalentTools(name, offered) {
		if wire, err := own.LLM(); err == nil {
			quoted = append(quoted, fmt.Sprintf("%q", wire))
		}
	}
	if len(quoted) == 0 {
		return ""
	}
	return " Use " + strings.Join(quoted, ", ") + " instead."
}
