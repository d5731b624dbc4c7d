package main

import (
	"errors"
	"reflect"
	"slices"
	"strings"
	"time"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"github.com/caisson-run/caisson/cmd/caisson/internal/config"
)

// settingFlag is a setting of the configuration as a flag.
type settingFlag struct {
	setting config.Setting
	file    *config.File
	text    string
}

func (f *settingFlag) Set(v string) error {
	if f.setting.List && f.text != "" { // given before
		v = f.text + "," + v
	}
	f.text = v
	err := f.setting.Set(f.file, v, "--"+f.setting.Flag)
	if e, ok := errors.AsType[*config.Error](err); ok {
		return errors.New(e.Message) // pflag names the flag
	}
	return err
}

func (f *settingFlag) String() string { return f.text }

// Type returns the name of the value in help.
func (f *settingFlag) Type() string {
	if f.setting.Value == "" {
		return "bool"
	}
	return f.setting.Value
}

var _ pflag.Value = (*settingFlag)(nil)

// variableFlag is the flag for variables of commands. It works like docker run's.
type variableFlag struct{ file *config.File }

func (f variableFlag) Set(v string) error {
	name, value, ok := strings.Cut(v, "=")
	switch {
	case name == "":
		return errors.New("want NAME=VALUE, or NAME for a variable of caisson's own environment")
	case !ok:
		f.file.MoreEnvFrom = append(f.file.MoreEnvFrom, name)
		return nil
	case f.file.Env == nil:
		f.file.Env = map[string]string{}
	}
	f.file.Env[name] = value
	return nil
}

func (variableFlag) String() string { return "" }

func (variableFlag) Type() string { return "NAME=VALUE" }

// addSettings adds flags that set the settings of some groups or flags, or all, in file. A
// setting has its letter unless another flag of the command has it.
func addSettings(cmd *cobra.Command, file *config.File, groups ...string) {
	for _, s := range config.Settings() {
		if groups != nil && !slices.Contains(groups, s.Group) && !slices.Contains(groups, s.Flag) {
			continue
		}
		letter := s.Letter
		if letter != "" && cmd.Flags().ShorthandLookup(letter) != nil {
			letter = ""
		}
		flag := cmd.Flags().VarPF(&settingFlag{setting: s, file: file}, s.Flag, letter, s.Usage)
		flag.DefValue = s.Default // help shows it
		if s.Value == "" {
			flag.NoOptDefVal = "true"
		}
	}
	if groups == nil || slices.Contains(groups, "Sandbox") {
		cmd.Flags().VarP(variableFlag{file}, "env", "e", "set a variable for commands; NAME alone passes on caisson's own (repeatable)")
	}
}

// newCommand completes a command with its flags and the exit statuses in help. flags is
// nil or a pointer to a struct as for addFlags.
func newCommand(cmd *cobra.Command, flags any, traits commandTraits, own statuses) *cobra.Command {
	cmd.Long = strings.TrimSuffix(cmd.Long, "\n") + "\n" + exitHelp(own, traits)
	cmd.Flags().SortFlags = false
	if flags != nil {
		addFlags(cmd, reflect.ValueOf(flags).Elem())
	}
	return cmd
}

// addFlags adds a flag for each field of a struct that has the tag flag: the name and,
// after a comma, the letter. The tag doc is the text in help, default the default. A
// list with the tag split may be one value with commas. An embedded struct adds its own
// flags. A [config.File] adds all settings, or only the groups and flags in the tag
// groups, on the field or on an embedded struct around it.
func addFlags(cmd *cobra.Command, to reflect.Value, groups ...string) {
	flags := cmd.Flags()
	for field, value := range to.Fields() {
		if !field.IsExported() && !field.Anonymous {
			continue
		}
		groups := groups
		if text, ok := field.Tag.Lookup("groups"); ok {
			groups = strings.Split(text, ",")
		}
		name, letter, _ := strings.Cut(field.Tag.Get("flag"), ",")
		doc := field.Tag.Get("doc")
		switch {
		case field.Type == reflect.TypeFor[config.File]():
			addSettings(cmd, value.Addr().Interface().(*config.File), groups...)
			continue
		case field.Anonymous:
			addFlags(cmd, value, groups...)
			continue
		case name == "":
			continue
		}
		switch p := value.Addr().Interface().(type) {
		case *string:
			flags.VarP((*textFlag)(p), name, letter, doc)
		case *bool:
			flags.BoolVarP(p, name, letter, false, doc)
		case *int:
			flags.IntVarP(p, name, letter, 0, doc)
		case *uint16:
			flags.Uint16VarP(p, name, letter, 0, doc)
		case *time.Duration:
			flags.DurationVarP(p, name, letter, 0, doc)
		case *[]string:
			if _, split := field.Tag.Lookup("split"); split {
				flags.StringSliceVarP(p, name, letter, nil, doc)
			} else {
				flags.StringArrayVarP(p, name, letter, nil, doc)
			}
		default:
			panic("no flag can have the type " + field.Type.String())
		}
		if text, ok := field.Tag.Lookup("default"); ok {
			f := flags.Lookup(name)
			if err := f.Value.Set(text); err != nil {
				panic(err)
			}
			f.DefValue = f.Value.String()
		}
	}
}

// textFlag is the value of a flag that takes a text. It refuses an empty one, the value
// of an unset variable: --verify "$TESTS" would verify nothing.
type textFlag string

func (f *textFlag) String() string { return string(*f) }
func (f *textFlag) Type() string   { return "string" }

func (f *textFlag) Set(text string) error {
	if text == "" {
		return errors.New("it is empty; leave the flag out, or give it a value")
	}
	*f = textFlag(text)
	return nil
}

type profileFlag struct {
	Profile string `flag:"profile" doc:"use the settings of profiles.NAME in the configuration"`
}

// projectOptions select how a command treats a workspace's own settings.
type projectOptions struct {
	Require bool `flag:"require-trust" doc:"refuse a workspace that is not trusted (caisson trust)"`
	Ignore  bool `flag:"ignore-project-config" doc:"ignore the workspace's own settings, even if it is trusted"`
}

// workspaceFlags are the flags of a command that works on a workspace with its settings.
type workspaceFlags struct {
	Workspace string `flag:"workspace" default:"." doc:"directory to work in"`
	profileFlag
	projectOptions
	Settings config.File
}

// wantArgs checks the number of arguments, which what describes. most is -1 for any
// number.
func wantArgs(least, most int, what string) cobra.PositionalArgs {
	return func(cmd *cobra.Command, args []string) error {
		if len(args) < least || most >= 0 && len(args) > most {
			return newUsageError("%s takes %s, got %s", cmd.CommandPath(), what, formatCount(len(args), "argument", "arguments"))
		}
		return nil
	}
}

func firstArgument(args []string) string { return firstOr(args, "") }
