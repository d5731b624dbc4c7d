package main

import (
	"io"
	"maps"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/caisson-run/caisson/cmd/caisson/internal/config"
	"github.com/caisson-run/caisson/cmd/caisson/internal/mcpclients"
	"github.com/caisson-run/caisson/images/store"
	"github.com/caisson-run/caisson/runner"
	"github.com/caisson-run/caisson/runner/caches"
	"github.com/caisson-run/caisson/runner/doctor"
	"github.com/caisson-run/caisson/runner/trace"
	"github.com/caisson-run/caisson/tools"
)

// mostOffered is the most sessions that completion offers, newest first.
const mostOffered = 30

type candidates func(env environ) ([]cobra.Completion, cobra.ShellCompDirective)

// addCompletion completes the user's own things, such as sessions and images, and the
// words of settings. It runs at each press of the tab key, so it starts no program and
// contacts no server.
func addCompletion(root *cobra.Command, a *app) {
	addBashFallback(root)
	env, servers := a.environ, completeKeys(func(c config.Config) map[string]config.MCPServer { return c.MCP })
	arguments := map[string]candidates{
		"caisson diff": completeSessions, "caisson open": completeSessions, "caisson apply": completeSessions, "caisson sandbox exec": completeLiveSessions, "caisson sandbox attach": completeLiveSessions, "caisson sandbox rm": completeLiveSessions,
		"caisson trace show": completeSessions, "caisson trace verify": completeSessions, "caisson trace export": completeSessions, "caisson trace html": completeSessions, "caisson egress suggest": completeSessions,
		"caisson tools ls": completeTools, "caisson tools call": completeTools, "caisson trust": completeDirectories, "caisson untrust": completeDirectories, "caisson config schema": completeWords("user", "project", "requirements"),
		"caisson images rm": completeImages, "caisson images export": completeImages, "caisson images pull": completeImages, "caisson caches rm": completeCaches,
		"caisson mcp add-to": completeClients, "caisson mcp test": servers, "caisson mcp login": servers, "caisson mcp logout": servers,
	}
	flags := map[string]candidates{
		"workspace": completeDirectories, "tool": completeTools, "profile": completeKeys(func(c config.Config) map[string]config.File { return c.Profiles }), "model": completeKeys(func(c config.Config) map[string]config.Model { return c.Models }), "format": completeWords("jsonl", "json", "atif"), "report": completeWords("auto", "github", "none"),
		"image": completeImages, "resume": completeSessions, "cache": completeWords(caches.Presets()...), "mcp": servers,
	}
	lists := map[string]bool{} // the flags that take several words
	for _, s := range config.Settings() {
		if s.Words != nil {
			flags[s.Flag] = completeWords(s.Words...)
		}
		lists[s.Flag] = s.List
	}
	visitCommands(root, func(cmd *cobra.Command) {
		if c, ok := arguments[cmd.CommandPath()]; ok {
			cmd.ValidArgsFunction = func(_ *cobra.Command, args []string, _ string) ([]cobra.Completion, cobra.ShellCompDirective) {
				if len(args) > 0 {
					return nil, cobra.ShellCompDirectiveDefault
				}
				return c(env)
			}
		}
		for name, c := range flags {
			if cmd.Flags().Lookup(name) == nil {
				continue
			}
			err := cmd.RegisterFlagCompletionFunc(name, func(_ *cobra.Command, _ []string, typed string) ([]cobra.Completion, cobra.ShellCompDirective) {
				words, directive := c(env)
				if !lists[name] {
					return words, directive
				}
				before := typed[:strings.LastIndexByte(typed, ',')+1]
				var out []cobra.Completion
				for _, word := range words {
					if !slices.Contains(strings.Split(before, ","), word) {
						out = append(out, before+word)
					}
				}
				return out, directive
			})
			if err != nil {
				panic(err) // the flag exists and has none yet
			}
		}
	})
}

// bashFallback replaces the functions that cobra's script takes from the
// bash-completion package, if that is not installed. COMP_WORDBREAKS has ":" and "=",
// so words with them are joined again.
const bashFallback = `if ! declare -F _get_comp_words_by_ref >/dev/null 2>&1; then
    _get_comp_words_by_ref() {
        local i
        words=() cword=0
        for ((i = 0; i < ${#COMP_WORDS[@]}; i++)); do
            if ((i > 1)) && [[ ${COMP_WORDS[i]} == [:=]* || ${COMP_WORDS[i-1]} == *[:=] ]]; then
                words[${#words[@]}-1]+=${COMP_WORDS[i]}
            else
                words+=("${COMP_WORDS[i]}")
            fi
            ((i == COMP_CWORD)) && cword=$((${#words[@]} - 1))
        done
        cur=${words[cword]} prev=${words[cword-1]}
    }
fi
if ! declare -F __ltrim_colon_completions >/dev/null 2>&1; then
    __ltrim_colon_completions() {
        local head=${1%"${1##*:}"} i
        for i in "${!COMPREPLY[@]}"; do
            COMPREPLY[i]=${COMPREPLY[i]#"$head"}
        done
    }
fi
`

func addBashFallback(root *cobra.Command) {
	root.InitDefaultCompletionCmd("completion")
	bash, _, err := root.Find([]string{"completion", "bash"})
	if err != nil || bash.RunE == nil {
		return // cobra's default changed: its script then needs the package
	}
	script := bash.RunE
	bash.RunE = func(cmd *cobra.Command, args []string) error {
		if _, err := io.WriteString(cmd.OutOrStdout(), bashFallback); err != nil {
			return err
		}
		return script(cmd, args)
	}
}

func visitCommands(cmd *cobra.Command, f func(*cobra.Command)) {
	f(cmd)
	for _, c := range cmd.Commands() {
		visitCommands(c, f)
	}
}

func completeWords(words ...string) candidates {
	return func(environ) ([]cobra.Completion, cobra.ShellCompDirective) {
		return words, cobra.ShellCompDirectiveNoFileComp
	}
}

func completeDirectories(environ) ([]cobra.Completion, cobra.ShellCompDirective) {
	return nil, cobra.ShellCompDirectiveFilterDirs
}

func completeSessions(env environ) ([]cobra.Completion, cobra.ShellCompDirective) {
	return listSessions(env, "", func(state string) ([]trace.Entry, error) { return trace.List(state, mostOffered, nil) })
}

func completeLiveSessions(env environ) ([]cobra.Completion, cobra.ShellCompDirective) {
	return listSessions(env, "", listLive)
}

func listLive(state string) ([]trace.Entry, error) { return trace.ListLive(state, mostOffered) }

// completeCopyName completes ID: of a live sandbox, or else a path of this machine.
func completeCopyName(env environ, typed string) ([]cobra.Completion, cobra.ShellCompDirective) {
	names, directive := listSessions(env, ":", listLive)
	names = slices.DeleteFunc(names, func(name cobra.Completion) bool { return !strings.HasPrefix(name, typed) })
	if len(names) == 0 {
		return nil, cobra.ShellCompDirectiveDefault
	}
	return names, directive | cobra.ShellCompDirectiveNoSpace
}

func completeImages(env environ) ([]cobra.Completion, cobra.ShellCompDirective) {
	if env.cacheDir() == "" {
		return nil, cobra.ShellCompDirectiveDefault
	}
	names, _ := store.References(filepath.Join(env.cacheDir(), "images"))
	return names, cobra.ShellCompDirectiveDefault // or a path
}

// completeCaches returns the IDs of caches, with their workspaces.
func completeCaches(env environ) (out []cobra.Completion, _ cobra.ShellCompDirective) {
	if state, err := findState(env); err == nil {
		list, _ := caches.NewStore(state).List()
		for _, e := range list {
			out = append(out, cobra.CompletionWithDesc(e.ID, makeSafe(e.Workspace)))
		}
	}
	return out, cobra.ShellCompDirectiveDefault // or a workspace
}

func completeClients(environ) (out []cobra.Completion, _ cobra.ShellCompDirective) {
	for _, c := range mcpclients.All() {
		out = append(out, cobra.CompletionWithDesc(c.Name, c.Title))
	}
	return out, cobra.ShellCompDirectiveNoFileComp
}

// listSessions returns the IDs of listed sessions, each with a suffix, its age and its
// task.
func listSessions(env environ, suffix string, list func(state string) ([]trace.Entry, error)) ([]cobra.Completion, cobra.ShellCompDirective) {
	const order = cobra.ShellCompDirectiveNoFileComp | cobra.ShellCompDirectiveKeepOrder
	state, err := findState(env)
	if err != nil {
		return nil, order
	}
	entries, err := list(state)
	if err != nil {
		return nil, order
	}
	var out []cobra.Completion
	for _, e := range entries {
		out = append(out, cobra.CompletionWithDesc(e.Session+suffix, doctor.FormatAge(e.Begun, time.Now())+" ago: "+firstLine(e.Task, 40)))
	}
	return out, order
}

// completeTools returns the configured tools, or Caisson's own if the configuration
// can't be read.
func completeTools(env environ) ([]cobra.Completion, cobra.ShellCompDirective) {
	var defs []tools.Definition
	conf, err := loadConfig(&app{environ: env}, "")
	if err == nil {
		defs, err = toolsOf(&conf)
	}
	if err != nil {
		if defs, err = runner.Definitions(); err != nil {
			return nil, cobra.ShellCompDirectiveError
		}
	}
	var out []cobra.Completion
	for _, d := range defs {
		out = append(out, cobra.CompletionWithDesc(string(d.Name), string(d.Class)))
	}
	return out, cobra.ShellCompDirectiveNoFileComp
}

// completeKeys completes the keys of a map of the user's file. It completes nothing if
// the file can't be read.
func completeKeys[T any](of func(config.Config) map[string]T) candidates {
	return func(env environ) ([]cobra.Completion, cobra.ShellCompDirective) {
		conf, _ := loadConfig(&app{environ: env}, "")
		return slices.Sorted(maps.Keys(of(conf))), cobra.ShellCompDirectiveNoFileComp
	}
}
