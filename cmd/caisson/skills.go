package main

import (
	"cmp"
	"context"
	"fmt"
	"strings"

	"github.com/spf13/cobra"

	"github.com/caisson-run/caisson/cmd/caisson/internal/config"
	"github.com/caisson-run/caisson/runner/record"
	"github.com/caisson-run/caisson/tools"
	"github.com/caisson-run/caisson/tools/skill"
	"github.com/caisson-run/caisson/tools/workspace"
)

const skillsLong = "Show the skills that a session on the workspace can load: directories with a SKILL.md in .agents/skills and\n" +
	".claude/skills of the workspace, in ~/.config/caisson/skills, and in skill_dirs.\n"

func newSkillsCommand(a *app) *cobra.Command {
	return newGroup(&cobra.Command{Use: "skills", Short: "List and show the skills that the model can load", Long: skillsLong},
		newSkillsListCommand(a), newSkillsShowCommand(a))
}

type skillFlags struct {
	Workspace string `flag:"workspace" default:"." doc:"directory of the workspace"`
	profileFlag
	JSON bool `flag:"json" doc:"write JSON"`
}

type foundSkills struct {
	Skills  []skill.Info    `json:"skills"`
	Ignored []skill.Ignored `json:"ignored"`
}

func newSkillsListCommand(a *app) *cobra.Command {
	var f skillFlags
	return newCommand(&cobra.Command{
		Use: "ls [flags]", Aliases: []string{"list"}, Short: "List the skills, and those that can't be used", Args: noArgs,
		Long:    skillsLong + "\nStandard error lists the skills that can't be used, and why. The command needs no sandbox and no model.\n",
		Example: "  caisson skills ls\n  caisson skills ls --workspace ./project --json",
		RunE: func(cmd *cobra.Command, _ []string) error {
			found, err := f.findSkills(cmd.Context(), a)
			if err != nil {
				return err
			}
			if f.JSON {
				return writeJSON(a.stdout, found)
			}
			for _, i := range found.Ignored {
				a.warn("not used: " + i.Name + ": " + i.Why)
			}
			return showTable(a, false, found.Skills, table[skill.Info]{
				titles: []string{"SKILL", "TRUST", "TOOLS", "PATH", "WHAT IT DOES"},
				cells: func(s skill.Info) []string {
					about, _, _ := strings.Cut(strings.Join(strings.Fields(s.Description), " "), ". ")
					return []string{s.Name, string(s.Trust), skillTools(s), s.Path, about}
				},
				none: "There are no skills.",
			})
		},
	}, &f, usesConfig|usesInput, nil)
}

func newSkillsShowCommand(a *app) *cobra.Command {
	var f skillFlags
	return newCommand(&cobra.Command{
		Use: "show [flags] NAME", Short: "Show a skill: its text, and the tools that it allows", Args: wantArgs(1, 1, "the name of one skill"),
		Long:    "Show the text of a skill, and which tools are left while it is loaded.\n",
		Example: "  caisson skills show release",
		RunE: func(cmd *cobra.Command, args []string) error {
			found, err := f.findSkills(cmd.Context(), a)
			if err != nil {
				return err
			}
			for _, s := range found.Skills {
				if s.Name == args[0] {
					return a.show(f.JSON, s, func(p *page) { describeSkill(p, s) })
				}
			}
			return newFailure(exitInput, nil, fmt.Sprintf("there is no skill %q", args[0]), "caisson skills ls lists the skills, and those that can't be used.")
		},
	}, &f, usesConfig|usesInput, nil)
}

func (f *skillFlags) findSkills(ctx context.Context, a *app) (foundSkills, error) {
	var found foundSkills
	s, err := loadSettingsFor(a, config.File{}, f.Profile, f.Workspace, projectOptions{})
	if err != nil {
		return found, err
	}
	w, err := workspaceFor(a.environ, f.Workspace)
	if err != nil {
		return found, err
	}
	defer func() { _ = w.Close() }()
	options, err := skillOptions(&s.conf, a.environ)
	if err != nil {
		return found, err
	}
	defs, err := toolsOf(&s.conf)
	if err != nil {
		return found, err
	}
	var known []tools.Name
	for _, def := range defs {
		known = append(known, def.Name)
	}
	reader, err := workspace.NewReader(w.Dir, workspace.ReaderOptions{HostPath: w.Path})
	if err != nil {
		return found, err
	}
	set := options.Find(ctx, reader, w.Path, s.instructions)
	return foundSkills{record.NonNil(set.Infos(known)), record.NonNil(set.Ignored())}, nil
}

// skillTools names the tools that remain while the skill is loaded.
func skillTools(s skill.Info) string {
	if s.AllowedTools == nil {
		return "all"
	}
	names := make([]string, 0, len(s.Tools))
	for _, name := range s.Tools {
		names = append(names, string(name))
	}
	return cmp.Or(strings.Join(names, " "), "none")
}

func describeSkill(p *page, s skill.Info) {
	p.line("%s: %s, %d bytes, %s", s.Name, s.Path, s.Bytes, s.Trust)
	p.line("sha256 %s", s.SHA256)
	p.line("tools while it is loaded: %s", skillTools(s))
	if len(s.Unknown) > 0 {
		p.line("unknown tools, ignored: %s", strings.Join(s.Unknown, " "))
	}
	if len(s.Patterns) > 0 {
		p.line("patterns that are not enforced: %s", strings.Join(s.Patterns, " "))
	}
	for _, warning := range s.Warnings {
		p.line("warning: %s", warning)
	}
	text, _ := tools.DisplayLines("\n" + s.Description + "\n\n" + s.Body + "\n")
	p.WriteString(text)
}
