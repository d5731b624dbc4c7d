package main

import (
	"context"
	"fmt"

	"github.com/spf13/cobra"

	"github.com/caisson-run/caisson/cmd/caisson/internal/config"
	"github.com/caisson-run/caisson/cmd/caisson/internal/skills"
	"github.com/caisson-run/caisson/runner/record"
	"github.com/caisson-run/caisson/tools"
	"github.com/caisson-run/caisson/tools/skill"
	"github.com/caisson-run/caisson/tools/workspace"
)

const skillsLong = "The skills that a session on the workspace can load: directories with a SKILL.md in .agents/skills and\n" +
	".claude/skills of the workspace, in skills beside your configuration, and in skill_dirs.\n"

func newSkillsCommand(a *app) *cobra.Command {
	return newGroup(&cobra.Command{Use: "skills", Short: "List and show the skills that the model can load", Long: skillsLong},
		newSkillsListCommand(a), newSkillsShowCommand(a))
}

// skillFlags are the flags of the commands about skills.
type skillFlags struct {
	workspace, profile string
	json               bool
}

func (f *skillFlags) addTo(cmd *cobra.Command) {
	cmd.Flags().SortFlags = false
	cmd.Flags().StringVar(&f.workspace, "workspace", ".", "directory of the workspace")
	cmd.Flags().StringVar(&f.profile, "profile", "", "settings of profiles.NAME in the configuration")
	cmd.Flags().BoolVar(&f.json, "json", false, "write JSON")
}

func newSkillsListCommand(a *app) *cobra.Command {
	var f skillFlags
	cmd := &cobra.Command{
		Use:     "list [flags]",
		Short:   "List the skills, and those that can't be used",
		Long:    skillsLong + "\nWhat can't be used, and why, is on standard error. No sandbox and no model is needed.\n" + exitHelp(nil, usesConfig|usesInput),
		Example: "  caisson skills list\n  caisson skills list --workspace ./project --json",
		Args:    noArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			found, err := f.findSkills(cmd.Context(), a)
			if err != nil {
				return err
			}
			return listSkills(a, found, f.json)
		},
	}
	f.addTo(cmd)
	return cmd
}

func newSkillsShowCommand(a *app) *cobra.Command {
	var f skillFlags
	cmd := &cobra.Command{
		Use:     "show [flags] NAME",
		Short:   "Show a skill: its text, and the tools that it allows",
		Long:    "Show the text of a skill, and which tools are left while it is loaded.\n" + exitHelp(nil, usesConfig|usesInput),
		Example: "  caisson skills show release",
		RunE: func(cmd *cobra.Command, args []string) error {
			if len(args) != 1 {
				return newUsageError("show takes the name of one skill, got %d arguments", len(args))
			}
			found, err := f.findSkills(cmd.Context(), a)
			if err != nil {
				return err
			}
			for _, s := range found.Skills {
				if s.Name == args[0] && f.json {
					return writeJSON(a.stdout, s)
				}
				if s.Name == args[0] {
					return skills.Write(a.stdout, s)
				}
			}
			cause := fmt.Sprintf("there is no skill %q", args[0])
			return &commandError{Status: exitInput, Problem: record.Problem{Cause: cause, Hint: "caisson skills list lists them, and those that can't be used."}}
		},
	}
	f.addTo(cmd)
	return cmd
}

// findSkills returns the skills that a session on the workspace would have.
func (f *skillFlags) findSkills(ctx context.Context, a *app) (skills.Found, error) {
	found := skills.Found{Skills: []skill.Info{}, Ignored: []skill.Ignored{}}
	s, err := loadSettings(a, config.File{}, f.profile)
	if err != nil {
		return found, err
	}
	w, err := workspaceFor(a.environ, f.workspace)
	if err != nil {
		return found, err
	}
	defer func() { _ = w.Close() }()
	if err := s.loadFor(w.Path); err != nil {
		return found, err
	}
	if err := s.useProject(w, projectOptions{}); err != nil {
		return found, err
	}
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
	return skills.Found{Skills: set.Infos(known), Ignored: record.NonNil(set.Ignored())}, nil
}

func listSkills(a *app, found skills.Found, asJSON bool) error {
	if asJSON {
		return writeJSON(a.stdout, found)
	}
	for _, i := range found.Ignored {
		line, _ := tools.Display(i.Name + ": " + i.Why)
		a.printLines("caisson: not used: " + line)
	}
	if len(found.Skills) == 0 {
		_, err := fmt.Fprintln(a.stdout, "There are no skills.")
		return err
	}
	return a.writeTable(found.Rows())
}
