package main

import (
	"fmt"
	"runtime"
	"runtime/debug"
	"strings"

	"github.com/spf13/cobra"

	"github.com/caisson-run/caisson/sandbox/programs"
)

func newVersionCommand(a *app) *cobra.Command {
	return &cobra.Command{
		Use:   "version",
		Short: "Print the version",
		Long:  "Print the version, and what it was built with." + "\n" + exitHelp(nil),
		Args:  noArgs,
		RunE: func(*cobra.Command, []string) error {
			_, err := fmt.Fprintln(a.stdout, versionLine())
			return err
		},
	}
}

func versionLine() string {
	with := "no programs embedded"
	if names := programs.Embedded(); len(names) > 0 {
		with = "with " + strings.Join(names, " and ")
	}
	return fmt.Sprintf("caisson %s %s %s/%s, %s", programVersion(), runtime.Version(), runtime.GOOS, runtime.GOARCH, with)
}

// modulePath is the path of this module.
const modulePath = "github.com/caisson-run/caisson"

// installHint returns how a program that was not found is installed: in the way in
// which this one was.
func installHint(name string) string {
	switch name {
	case "caisson-guest", "runsc":
	default:
		return "Install it, or name it under programs: in the configuration."
	}
	if info, ok := debug.ReadBuildInfo(); ok && info.Main.Version != "" && info.Main.Version != "(devel)" {
		install := map[string]string{
			"caisson-guest": modulePath + "/cmd/caisson-guest@" + info.Main.Version,
			"runsc":         modulePath + "/sandbox/oci/runsc@latest",
		}[name]
		return "Install it beside caisson: CGO_ENABLED=0 go install " + install
	}
	return "Build it with make build, keep it beside caisson, or name it under programs: in the configuration."
}

// programVersion is what the build stamped, or what Go knows of the module.
func programVersion() string {
	if version != "" {
		return version
	}
	if info, ok := debug.ReadBuildInfo(); ok && info.Main.Version != "" && info.Main.Version != "(devel)" {
		return info.Main.Version
	}
	return "devel"
}
