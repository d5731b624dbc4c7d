package main

import (
	"errors"
	"fmt"
	"strings"

	"github.com/spf13/cobra"

	"github.com/caisson-run/caisson/cmd/caisson/internal/config"
	"github.com/caisson-run/caisson/runner/doctor"
	"github.com/caisson-run/caisson/runner/record"
	"github.com/caisson-run/caisson/tools"
)

// shownConfig is the output of caisson config show --json.
type shownConfig struct {
	Settings []config.Value   `json:"settings"`
	Sources  []record.Source  `json:"sources"`
	Ignored  []record.Ignored `json:"ignored"`
	// Notes describe settings that do less than they seem to.
	Notes []string `json:"notes"`
}

func newConfigCommand(a *app) *cobra.Command {
	return newGroup(&cobra.Command{
		Use: "config", Short: "Show the settings that count, or a schema of them",
	}, newConfigShowCommand(a), newConfigSchemaCommand(a))
}

func newConfigShowCommand(a *app) *cobra.Command {
	var settings config.File
	var profile, workspace string
	var asJSON bool
	cmd := &cobra.Command{
		Use:   "show [flags]",
		Short: "Show the settings that count, and where each came from",
		Long: "Show each setting, its value, and where it came from. Keys and other secrets are not shown.\n" +
			"With --workspace a trusted workspace's own settings count too. What a setting does not do though it\n" +
			"looks like it is said on standard error. A preset that is not configured\n" +
			"is chosen by each run: ci without a terminal, default or sandboxed on one.\n" +
			exitHelp(nil, usesConfig|usesInput),
		Example: "  caisson config show\n  caisson config show --workspace . --profile careful --json",
		Args:    noArgs,
		RunE: func(*cobra.Command, []string) error {
			return showConfig(a, settings, profile, workspace, asJSON)
		},
	}
	cmd.Flags().SortFlags = false
	cmd.Flags().BoolVar(&asJSON, "json", false, "write JSON")
	cmd.Flags().StringVar(&workspace, "workspace", "", "also the own settings of this workspace")
	cmd.Flags().StringVar(&profile, "profile", "", "settings of profiles.NAME in the configuration")
	addSettings(cmd, &settings)
	return cmd
}

func showConfig(a *app, flags config.File, profile, directory string, asJSON bool) error {
	s, err := loadSettings(a, flags, profile)
	if err != nil {
		return err
	}
	if directory != "" {
		w, err := workspaceFor(a.environ, directory)
		if err != nil {
			return err
		}
		defer func() { _ = w.Close() }()
		if err := s.loadFor(w.Path); err != nil {
			return err
		}
		if err := s.useProject(w, projectOptions{}); err != nil {
			return err
		}
	}
	policy, err := s.conf.ToolPolicy("default")
	if err != nil {
		return err
	}
	defs, err := toolsOf(&s.conf)
	if err != nil {
		return err
	}
	var keys []string
	for _, m := range s.conf.Models {
		keys = append(keys, valueOf(m.APIKeyEnv))
	}
	shown := shownConfig{Settings: s.conf.Effective(config.HiddenValues(a.environ, keys...)), Sources: s.recordSources(), Ignored: s.ignored}
	if shown.Ignored == nil {
		shown.Ignored = []record.Ignored{}
	}
	shown.Notes = []string{}
	if note := doctor.DescribeNotBinding(policy, defs); note != "" {
		shown.Notes = append(shown.Notes, note+". "+doctor.NotBindingHint)
	}
	if asJSON {
		return writeJSON(a.stdout, shown)
	}
	return printConfig(a, shown)
}

// printConfig writes a table of three columns.
func printConfig(a *app, shown shownConfig) error {
	keys, values := 0, 0
	for i, v := range shown.Settings {
		v.Key, _ = tools.Display(v.Key)
		v.Text, _ = tools.Display(v.Text)
		v.Origin, _ = tools.Display(v.Origin)
		shown.Settings[i] = v
		keys, values = max(keys, len(v.Key)), max(values, min(len(v.Text), 40))
	}
	var errs []error
	for _, v := range shown.Settings {
		line := fmt.Sprintf("%-*s  %-*s  %s", keys, v.Key, values, v.Text, v.Origin)
		_, err := fmt.Fprintln(a.stdout, strings.TrimRight(line, " "))
		errs = append(errs, err)
	}
	for _, i := range shown.Ignored {
		text, _ := tools.Display(i.Name + " is ignored: " + i.Why)
		_, err := fmt.Fprintln(a.stderr, "! "+text)
		errs = append(errs, err)
	}
	for _, note := range shown.Notes {
		text, _ := tools.Display(note)
		_, err := fmt.Fprintln(a.stderr, "! "+text)
		errs = append(errs, err)
	}
	return errors.Join(errs...)
}

func newConfigSchemaCommand(a *app) *cobra.Command {
	return &cobra.Command{
		Use:   "schema [user | project | requirements]",
		Short: "Write a JSON Schema of a configuration file, for editors",
		Long: "Write the JSON Schema (Draft 7) of the user's configuration file, of a workspace's own\n" +
			"(.caisson/config.yaml), or of an administrator's requirements.\n" + exitHelp(nil, 0),
		Example: "  caisson config schema > caisson.json",
		RunE: func(_ *cobra.Command, args []string) error {
			if len(args) > 1 {
				return newUsageError("config schema takes one name, got %d arguments", len(args))
			}
			name := firstArgument(args)
			if name == "" {
				name = "user"
			}
			schema, err := config.Schema(name)
			if err != nil {
				return &usageError{err}
			}
			return writeJSON(a.stdout, schema)
		},
	}
}
