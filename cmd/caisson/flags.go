package main

import (
	"errors"
	"fmt"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"github.com/caisson-run/caisson/cmd/caisson/internal/config"
)

// settingFlag is one setting of the configuration as a flag.
type settingFlag struct {
	setting config.Setting
	file    *config.File
	text    string
}

// Set implements pflag.Value.
func (f *settingFlag) Set(v string) error {
	f.text = v
	err := f.setting.Set(f.file, v, "--"+f.setting.Flag)
	if e, ok := errors.AsType[*config.Error](err); ok {
		return errors.New(e.Message) // pflag names the flag
	}
	return err
}

// String implements pflag.Value.
func (f *settingFlag) String() string { return f.text }

// Type implements pflag.Value; it is what help shows for the value.
func (f *settingFlag) Type() string {
	if f.setting.Value == "" {
		return "bool"
	}
	return f.setting.Value
}

var _ pflag.Value = (*settingFlag)(nil)

// addSettings adds the flags of all settings, which write to file.
func addSettings(cmd *cobra.Command, file *config.File) {
	for _, s := range config.Settings() {
		flag := cmd.Flags().VarPF(&settingFlag{setting: s, file: file}, s.Flag, "", s.Usage)
		flag.DefValue = s.Default // help shows it
		if s.Value == "" {
			flag.NoOptDefVal = "true"
		}
	}
}

func usage(format string, args ...any) error {
	return &usageError{fmt.Errorf(format, args...)}
}
