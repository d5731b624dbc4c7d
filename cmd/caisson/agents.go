package main

import (
	"cmp"
	"context"
	"errors"
	"os"
	"path/filepath"
	"strings"

	"github.com/spf13/cobra"

	"github.com/caisson-run/caisson/cmd/caisson/internal/agents"
	"github.com/caisson-run/caisson/cmd/caisson/internal/config"
	"github.com/caisson-run/caisson/runner"
)

const agentsLong = "Show and install other people's agents, such as Claude Code and Codex, which run in the sandbox and ask\n" +
	"models through Caisson. agents in the configuration changes them and adds your own.\n"

func newAgentsCommand(a *app) *cobra.Command {
	return newGroup(&cobra.Command{Use: "agents", Short: "List, install and check other people's agents", Long: agentsLong},
		newAgentsListCommand(a), newAgentsInstallCommand(a), newAgentsCheckCommand(a))
}

// agentFinder returns where to look for the programs of agents. workspace is the
// resolved path of the workspace, or "".
func (s *settings) agentFinder(workspace string) *agents.Finder {
	return &agents.Finder{
		Home: s.environ.home(), Path: s.environ.get("PATH"), Installed: joinUnder(s.environ.dataDir(), "agents"), Writable: s.writableDirs(workspace),
	}
}

type listedAgent struct {
	Name     string `json:"name"`
	Protocol string `json:"protocol"`
	// Models maps the names that the agent asks for to profiles. It is empty if no
	// configured model speaks the agent's protocol.
	Models map[string]string `json:"models"`
	// Source is dir, image, caisson or PATH. Directory is the program's directory on this
	// machine. All are "" if the agent can't be used.
	Source    string `json:"source,omitempty"`
	Directory string `json:"directory,omitempty"`
	Version   string `json:"version,omitempty"`
	NeedsNode bool   `json:"needs_node,omitempty"`
	// Missing are the reasons why it can't run, each with a hint.
	Missing []string `json:"missing"`
}

func newAgentsListCommand(a *app) *cobra.Command {
	var f struct {
		profileFlag
		JSON bool `flag:"json" doc:"write a JSON array"`
	}
	return newCommand(&cobra.Command{
		Use: "ls [flags]", Short: "List the agents: their programs and models, and what is missing", Args: noArgs,
		Long: agentsLong + `
FROM is caisson for an agent that caisson agents install installed, PATH for one that you installed, dir
for a directory of the configuration, and image. MODEL is the model that the agent asks by any name; it
must speak the agent's protocol. Nothing is run, and no model is asked.
`,
		Example: "  caisson agents ls\n  caisson agents ls --json | jq -r '.[] | select(.missing == []).name'",
		RunE: func(*cobra.Command, []string) error {
			s, err := loadSettings(a, config.File{}, f.Profile)
			if err != nil {
				return err
			}
			list, err := s.listAgents()
			if err != nil {
				return err
			}
			return showTable(a, f.JSON, list, table[listedAgent]{
				titles: []string{"AGENT", "PROTOCOL", "MODEL", "FROM", "VERSION", "MISSING"},
				cells: func(one listedAgent) []string {
					return []string{
						one.Name, one.Protocol, cmp.Or(one.Models[config.AnyModel], "-"), cmp.Or(one.Source, "-"), cmp.Or(one.Version, "-"),
						cmp.Or(strings.Join(one.Missing, "; "), "nothing"),
					}
				},
			})
		},
	}, &f, usesConfig, nil)
}

func (s *settings) listAgents() ([]listedAgent, error) {
	finder := s.agentFinder(resolvePath(".")) // as for a session here
	var list []listedAgent
	for _, name := range s.conf.AgentNames() {
		agent, err := agents.New(&s.conf, name)
		if err != nil {
			return nil, err
		}
		one := listedAgent{Name: name, Protocol: *agent.Protocol, Models: map[string]string{}, Missing: []string{}}
		if program, err := finder.Find(agent); err != nil {
			one.Missing = append(one.Missing, missingProgram(agent, err))
		} else {
			one.Source, one.Version, one.NeedsNode = program.Source, program.Version, program.Node == agents.ImageNode
			if program.Mount != nil {
				one.Directory = program.Mount.From
			}
		}
		models, err := s.conf.SelectAgentModels(name, s.environ)
		if err != nil {
			one.Missing = append(one.Missing, missingModel(err))
		}
		for asked, m := range models {
			one.Models[asked] = m.Profile
		}
		list = append(list, one)
	}
	return list, nil
}

// missingProgram says what is wrong with an agent's program, and what to do.
func missingProgram(agent agents.Agent, err error) string {
	if agent.NPM != nil && errors.Is(err, agents.ErrNotInstalled) {
		return "the program (caisson agents install " + agent.Name + ")"
	}
	if e, ok := errors.AsType[*agents.MissingError](err); ok {
		err = e.Err
	}
	return "the program (" + err.Error() + ")"
}

// missingModel says what is wrong with an agent's models, and what to do.
func missingModel(err error) string {
	if e, ok := errors.AsType[*config.Error](err); ok {
		return "a model (" + cmp.Or(e.Hint, e.Message) + ")"
	}
	return "a model (" + err.Error() + ")"
}

func newAgentsInstallCommand(a *app) *cobra.Command {
	var f struct {
		profileFlag
		Image string `flag:"image" default:"host" doc:"image with npm, in which the installation runs"`
	}
	return newCommand(&cobra.Command{
		Use: "install [flags] NAME...", Short: "Install agents from npm, in a sandbox", Args: wantArgs(1, -1, "names of agents"),
		Long: `Install agents for caisson exec and caisson batch, in the version of their definition (npm in agents),
below $XDG_DATA_HOME/caisson/agents. An installed version is replaced.

npm runs in a sandbox, which can reach the registry of npm and write to the new directory. Scripts of
packages don't run. An agent that needs Node.js gets its own, so that images need none. The agent's
programs never run on this machine.
`,
		Example: "  caisson agents install claude codex\n  caisson agents install gemini --image node:24",
		RunE: func(cmd *cobra.Command, args []string) error {
			for _, name := range args {
				if err := installAgent(cmd.Context(), a, f.Profile, f.Image, name); err != nil {
					return err
				}
			}
			return nil
		},
	}, &f, usesConfig|startsSandbox|interruptible, statuses{exitFailed: "npm failed"})
}

// installAgent installs an agent beside its place, and then moves it there.
func installAgent(ctx context.Context, a *app, profile, image, name string) error {
	s, err := loadSettings(a, config.File{}, profile)
	if err != nil {
		return err
	}
	agent, err := agents.New(&s.conf, name)
	if err != nil {
		return err
	}
	if agent.NPM == nil {
		return newFailure(exitConfig, nil, "the agent "+name+" is not a package of npm", "Its definition has dir or image: see agents in the configuration.")
	}
	finder := s.agentFinder("")
	if finder.Installed == "" {
		return newFailure(exitConfig, nil, "there is no place for agents: neither HOME nor XDG_DATA_HOME is an absolute path", "Set HOME, or XDG_DATA_HOME.")
	}
	if err := os.MkdirAll(finder.Installed, 0o700); err != nil {
		return err
	}
	staging, err := os.MkdirTemp(finder.Installed, ".new-")
	if err != nil {
		return err
	}
	defer func() { _ = os.RemoveAll(staging) }() // nothing is there after the move
	dir := filepath.Join(staging, name)
	if err := os.Mkdir(dir, 0o755); err != nil { //nolint:gosec // commands in the sandbox read it as another user
		return err
	}
	w := workspaceFlags{Workspace: dir, profileFlag: profileFlag{profile}}
	w.Settings.Image, w.Settings.Mode, w.Settings.MCPUse = &image, new("bind"), config.Names{"none"}
	w.Settings.Egress.Presets = config.Names{"npm"}
	argv := append([]string{"npm", "install", "--ignore-scripts", "--no-audit", "--no-fund", "--no-update-notifier"}, agent.Packages()...)
	result, output, err := runAlone(ctx, a, w, "caisson agents install "+name, nil, func(*runner.Options) ([]runner.UserCommand, error) {
		return []runner.UserCommand{{Argv: argv}}, nil
	})
	switch {
	case err != nil:
		return err
	case result.Status.Code == exitNoProgram:
		return newFailure(exitFailed, nil, "the image "+image+" has no npm", "Name one that has it, such as --image node:24, or install npm on this machine.")
	case !result.Status.Success():
		return newFailure(exitFailed, nil, "npm failed, "+result.Status.String()+": "+output, "Check the network, and egress in the configuration.")
	}
	program, err := (&agents.Finder{Home: finder.Home, Installed: staging}).Find(agent)
	if err != nil {
		return err
	}
	if err := errors.Join(os.RemoveAll(finder.Dir(name)), os.Rename(dir, finder.Dir(name))); err != nil {
		return err
	}
	return a.say("installed %s %s", name, program.Version)
}
