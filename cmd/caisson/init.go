package main

import (
	"bufio"
	"cmp"
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"github.com/spf13/cobra"

	"github.com/caisson-run/caisson/cmd/caisson/internal/config"
	"github.com/caisson-run/caisson/cmd/caisson/internal/project"
	"github.com/caisson-run/caisson/images"
	"github.com/caisson-run/caisson/runner"
	"github.com/caisson-run/caisson/sandbox"
)

// initAnswer is the output of caisson init --json.
type initAnswer struct {
	Workspace string        `json:"workspace"`
	Tools     []foundTool   `json:"tools"`
	Partial   bool          `json:"partial"`
	Programs  []initProgram `json:"programs"`
	Settings  []initSetting `json:"settings"`
	// Presets are the egress presets of the tools that the settings, with those above, lack.
	Presets []string `json:"presets"`
	// File is the configuration file; Written is set if it has the settings now.
	File    string `json:"file"`
	Written bool   `json:"written"`
}

type foundTool struct {
	Tool string `json:"tool"`
	File string `json:"file"`
}

// initSetting is a setting that is suggested, with its value as YAML.
type initSetting struct {
	Key    string `json:"key"`
	Value  string `json:"value"`
	Reason string `json:"reason"`
}

func newInitCommand(a *app) *cobra.Command {
	var f struct {
		initFlags
		JSON bool `flag:"json" doc:"write JSON"`
	}
	return newCommand(&cobra.Command{
		Use: "init [flags] [PATH]", Short: "Print, or write, the settings that a workspace's builds need", Args: wantArgs(0, 1, "one directory"),
		Long: `Look at a workspace, and print the settings that its builds and tests need to run in the sandbox. PATH is
a directory, by default the working directory.

The command recognises build tools by file names, such as go.mod, package.json, pyproject.toml, Cargo.toml
and pom.xml, at the top and one directory below it. It opens no file and runs no program. With image host,
the settings include directories of toolchains on your PATH that the image lacks.

Commands have no network unless you allow it. With --egress, the settings let them download packages
from the public registries of these tools, or those in your own ~/.npmrc, pip.conf and the like.

The settings belong below workspaces: in your configuration file, never in the workspace. On a terminal,
the command asks you whether to allow the registries, and whether to write the settings; --write writes
them without asking. It keeps the comments, the order and everything else in the file.
`,
		Example: "  caisson init\n  caisson init --egress --write ~/src/project",
		RunE: func(cmd *cobra.Command, args []string) error {
			return initWorkspace(cmd.Context(), a, firstArgument(args), f.initFlags, f.JSON)
		},
	}, &f, usesConfig|usesInput, nil)
}

// initFlags are what caisson init may do.
type initFlags struct {
	Egress bool `flag:"egress" doc:"let commands download packages from the registries of the build tools"`
	Write  bool `flag:"write" doc:"write the settings to your configuration file"`
}

func initWorkspace(ctx context.Context, a *app, directory string, f initFlags, asJSON bool) error {
	w, err := workspaceFor(a.environ, directory)
	if as[*runner.WorkspaceError](err) {
		return newFailure(exitInput, err, "", "Name the directory of a project: caisson init PATH.")
	}
	if err != nil {
		return err
	}
	defer func() { _ = w.Close() }()
	needed, err := loadMissing(a, w)
	if err != nil {
		return err
	}
	answer := initAnswer{Workspace: w.Path, Tools: []foundTool{}, Programs: []initProgram{}, Settings: []initSetting{}, Presets: []string{}}
	found, partial, err := project.Find(ctx, w.Dir, w.Path)
	if err != nil {
		return newFailure(exitInput, err, "the workspace can't be read: "+err.Error(), "")
	}
	answer.Partial = partial
	for _, f := range found {
		answer.Tools = append(answer.Tools, foundTool{f.Name, f.File})
	}
	if answer.Programs, err = needed.findPrograms(ctx, w, found); err != nil {
		return err
	}
	if !asJSON {
		if err := a.show(false, nil, func(p *page) { needed.describeFound(p, answer) }); err != nil {
			return err
		}
	}
	typed := bufio.NewReader(a.stdin)
	additions := needed.suggestSettings(found, answer.Programs)
	if presets := needed.suggestPresets(found); len(presets.Items) > 0 {
		f.Egress = f.Egress || !asJSON && !f.Write && askYes(a, typed, "Let commands in "+answer.Workspace+" download packages ("+strings.Join(presets.Items, ", ")+")?")
		if f.Egress {
			additions = append(additions, presets)
		} else {
			answer.Presets = presets.Items
		}
	}
	for _, add := range additions {
		answer.Settings = append(answer.Settings, initSetting{add.Key(), add.Value(), add.Comment})
	}
	var edit *config.Edit
	if len(additions) > 0 {
		if edit, err = needed.editFor(w, additions); err != nil {
			return err
		}
		answer.File = edit.Path
	}
	if !asJSON {
		if err := a.show(false, nil, func(p *page) { needed.describeSettings(p, answer, additions) }); err != nil {
			return err
		}
		if edit != nil && !f.Write {
			f.Write = askYes(a, typed, "Write them to "+edit.Path+"?")
		}
	}
	if edit != nil && f.Write {
		if err := edit.Write(); err != nil {
			return writeProblem(edit.Path, err)
		}
		answer.Written = true
	}
	switch {
	case asJSON:
		return writeJSON(a.stdout, answer)
	case answer.Written:
		return a.say("Written to %s. To try them, run caisson exec with a command there, such as your tests.", edit.Path)
	}
	return nil
}

// missingSettings finds the settings that a workspace needs beside those that it has.
type missingSettings struct{ *settings }

// loadMissing reads the user's settings for a workspace, without the workspace's own.
func loadMissing(a *app, w *runner.Workspace) (missingSettings, error) {
	s, err := loadSettings(a, config.File{}, "")
	if err == nil {
		err = s.loadFor(w.Path)
	}
	return missingSettings{s}, err
}

// editFor returns the user's file with the additions. It refuses a file in the workspace,
// where commands could change it.
func (s missingSettings) editFor(w *runner.Workspace, additions []config.Addition) (*config.Edit, error) {
	path, _ := s.environ.configPath()
	if path == "" {
		return nil, newFailure(exitConfig, nil, "there is no place for a configuration: neither HOME nor XDG_CONFIG_HOME is an absolute path", "Set HOME, or CAISSON_CONFIG.")
	}
	workspace := resolvePath(w.Path)
	if err := s.checkSettingsOf(w); err != nil {
		return nil, err
	}
	edit, err := config.EditWorkspace(config.Options{Environ: s.environ, Path: path}, workspace, additions)
	if err != nil {
		return nil, err
	}
	target, err := edit.Target()
	if err != nil {
		return nil, writeProblem(path, err)
	}
	if target == workspace || strings.HasPrefix(target, workspace+string(filepath.Separator)) {
		return nil, newFailure(exitConfig, nil, "the configuration file "+path+" is in the workspace, where commands can change it", "Keep it elsewhere, and name it with CAISSON_CONFIG.")
	}
	return edit, nil
}

// writeProblem is a configuration file that can't be written.
func writeProblem(path string, err error) error {
	if e, ok := errors.AsType[*config.Error](err); ok {
		return e
	}
	return newFailure(exitConfig, err, "the configuration file "+path+" can't be written: "+err.Error(), "Make it writable, or name another with CAISSON_CONFIG.")
}

// askYes asks a question on a terminal. Elsewhere the answer is no.
func askYes(a *app, typed *bufio.Reader, question string) bool {
	if !a.terminal(a.stdin) || !a.terminal(a.stderr) {
		return false
	}
	fmt.Fprintf(a.stderr, "%s [y/N] ", makeSafe(question))
	line, err := typed.ReadString('\n')
	if err != nil {
		fmt.Fprintln(a.stderr)
		return false
	}
	answer := strings.ToLower(strings.TrimSpace(line))
	return answer == "y" || answer == "yes"
}

// initProgram is a program that the commands of a workspace need.
type initProgram struct {
	Name string `json:"name"`
	// Path is its path on this machine, or "" if it is not on PATH.
	Path string `json:"path"`
	// Absent is set if the image lacks it. Toolchains are the directories that add it to
	// the image, by the setting host_image.
	Absent bool `json:"absent"`
	// Inside is the path of another program of this name that commands find instead, or
	// "": on PATH, a shim of a version manager may come first.
	Inside     string   `json:"inside,omitempty"`
	Toolchains []string `json:"toolchains,omitempty"`
}

// findPrograms looks for the programs of tools on PATH, and whether image host has them.
// The programs of other images are unknown until they run.
func (s missingSettings) findPrograms(ctx context.Context, w *runner.Workspace, found []project.Found) ([]initProgram, error) {
	out := []initProgram{}
	ref, err := images.ParseLocalReference(*s.conf.Image)
	if err != nil || ref.Scheme != images.SchemeHost {
		return out, nil
	}
	bs, err := openBackends(s.settings, w)
	if err != nil {
		return nil, err
	}
	defer bs.close()
	absent, err := bs.host.FindAbsentPrograms(ctx, ref, w.Path)
	if err != nil {
		return nil, imageFailure(err)
	}
	var names []string
	for _, f := range found {
		names = append(names, f.Programs...)
	}
	inside, err := bs.host.FindPrograms(ctx, ref, w.Path, names)
	if err != nil {
		return nil, imageFailure(err)
	}
	for _, f := range found {
		for _, name := range f.Programs {
			if slices.ContainsFunc(out, func(p initProgram) bool { return p.Name == name }) {
				continue
			}
			p := initProgram{Name: name, Path: findProgram(s.environ.get("PATH"), name, resolvePath(w.Path))}
			p.Absent = p.Path == ""
			for _, a := range absent {
				if slices.Contains(a.Programs, name) {
					p.Path, p.Absent, p.Toolchains = cmp.Or(p.Path, filepath.Join(a.Dir, name)), true, a.Toolchains
					break
				}
			}
			if other := inside[name]; !p.Absent && resolvePath(other) != resolvePath(p.Path) {
				p.Inside = other
			}
			out = append(out, p)
		}
	}
	return out, nil
}

// findProgram returns the first program of a name on PATH that is not in the workspace.
func findProgram(path, name, workspace string) string {
	for _, dir := range filepath.SplitList(path) {
		real, err := filepath.EvalSymlinks(dir)
		if err != nil || !filepath.IsAbs(dir) || real == workspace || strings.HasPrefix(real, workspace+string(filepath.Separator)) {
			continue
		}
		file := filepath.Join(dir, name)
		if info, err := os.Stat(file); err == nil && info.Mode().IsRegular() && info.Mode()&0o111 != 0 {
			return file
		}
	}
	return ""
}

// describeFound adds what was found to a page.
func (s missingSettings) describeFound(p *page, answer initAnswer) {
	if answer.Partial {
		p.line("%s has many files, and not all names were read.", answer.Workspace)
	}
	if len(answer.Tools) == 0 {
		p.line("%s has no build tool that is recognised. Looked for, at the top and one directory below it:", answer.Workspace)
		p.line("  %s", strings.Join(project.Files(), ", "))
		return
	}
	p.line("%s:", answer.Workspace)
	for _, t := range answer.Tools {
		p.line("  %-8s  %s", t.Tool, t.File)
	}
	for _, program := range answer.Programs {
		switch {
		case program.Path == "":
			p.line("  %-8s  is not on PATH: install it, or use an image that has it", program.Name)
		case program.Absent && len(program.Toolchains) == 0:
			p.line("  %-8s  %s, which image host can't show: use an image that has it", program.Name, program.Path)
		case program.Absent:
			p.line("  %-8s  %s, which image host lacks without the setting host_image", program.Name, program.Path)
		case program.Inside != "":
			p.line("  %-8s  %s; not %s, which image host lacks without the setting host_image", program.Name, program.Inside, program.Path)
		default:
			p.line("  %-8s  %s", program.Name, program.Path)
		}
	}
	if len(answer.Programs) == 0 {
		p.line("Whether image %s has their programs is not known.", *s.conf.Image)
	}
}

// describeSettings adds the settings that the tools need to a page.
func (s missingSettings) describeSettings(p *page, answer initAnswer, additions []config.Addition) {
	if len(answer.Tools) == 0 {
		return
	}
	if len(answer.Presets) > 0 {
		p.line("Commands can't download packages of %s; --egress allows it.", strings.Join(answer.Presets, ", "))
	}
	if len(additions) == 0 {
		if len(answer.Presets) == 0 {
			p.line("The configuration needs nothing more.")
		}
		return
	}
	p.line("")
	p.line("Settings for %s:", answer.File)
	p.line("")
	for line := range strings.Lines(config.LinesFor(config.ShortenHome(resolvePath(answer.Workspace), s.environ.home()), additions)) {
		p.line("%s", strings.TrimSuffix(line, "\n"))
	}
}

// goProxy is where the sandbox has the modules that this machine has downloaded.
const goProxy = sandbox.HomeDir + "/.goproxy"

// suggestSettings returns the settings that the tools of a workspace need, except the ones
// that are in effect already.
func (s missingSettings) suggestSettings(found []project.Found, programs []initProgram) []config.Addition {
	caches := config.Addition{Keys: []string{"caches"}, Inherited: flowScalars(s.conf.Caches), Comment: "kept between the sessions of this workspace"}
	mounts := config.Addition{Keys: []string{"mounts"}, Comment: "what this machine has downloaded, other projects' too"}
	for _, m := range s.conf.Mounts {
		mounts.Inherited = append(mounts.Inherited, flowMount(*m.From, *m.To, m.ReadOnly))
	}
	env := config.Addition{Keys: []string{"env"}, Entries: [][2]string{}, Comment: "modules come from there; go.sum verifies them"}
	for _, f := range found {
		if f.Cache != "" && !slices.Contains(s.conf.Caches, f.Cache) && !slices.Contains(caches.Items, config.FlowScalar(f.Cache)) {
			caches.Items = append(caches.Items, config.FlowScalar(f.Cache))
		}
		from := findModules(s.environ, f)
		if _, set := s.conf.Env["GOPROXY"]; from == "" || set {
			continue
		}
		env.Entries = append(env.Entries, [2]string{"GOPROXY", config.FlowScalar("file://" + goProxy)})
		if !slices.ContainsFunc(s.conf.Mounts, func(m config.Mount) bool { return *m.To == goProxy }) {
			mounts.Items = append(mounts.Items, flowMount(config.ShortenHome(from, s.environ.home()), goProxy, new(true)))
		}
	}
	return slices.DeleteFunc([]config.Addition{caches, mounts, env, s.suggestToolchains(programs)}, func(a config.Addition) bool {
		return len(a.Items) == 0 && len(a.Entries) == 0
	})
}

// suggestPresets returns the egress presets that the tools of a workspace need to download
// packages, except the ones that are set already.
func (s missingSettings) suggestPresets(found []project.Found) config.Addition {
	a := config.Addition{Keys: []string{"egress", "presets"}, Inherited: flowScalars(s.conf.Egress.Presets), Comment: "registries that commands may download from"}
	for _, f := range found {
		if f.Preset != "" && !f.Vendored && !slices.Contains(s.conf.Egress.Presets, f.Preset) && !slices.Contains(a.Items, f.Preset) {
			a.Items = append(a.Items, f.Preset)
		}
	}
	return a
}

// findModules returns the directory of the modules that this machine has downloaded. It
// returns "" if the workspace doesn't use them, or has its own.
func findModules(env environ, f project.Found) string {
	modules := env.get("GOMODCACHE")
	if !filepath.IsAbs(modules) {
		path := append(filepath.SplitList(env.get("GOPATH")), filepath.Join(env.home(), "go"))
		modules = filepath.Join(path[0], "pkg/mod")
	}
	modules = filepath.Join(modules, "cache/download")
	if info, err := os.Stat(modules); f.Name != "Go" || f.Vendored || !filepath.IsAbs(modules) || err != nil || !info.IsDir() {
		return ""
	}
	return modules
}

// flowMount returns a mount on one line.
func flowMount(from, to string, readOnly *bool) string {
	text := "{from: " + config.FlowScalar(from) + ", to: " + config.FlowScalar(to)
	if readOnly != nil && *readOnly {
		text += ", read_only: true"
	}
	return text + "}"
}

func flowScalars(words []string) []string {
	var out []string
	for _, word := range words {
		out = append(out, config.FlowScalar(word))
	}
	return out
}

// suggestToolchains returns the directories that image host lacks.
func (s missingSettings) suggestToolchains(programs []initProgram) config.Addition {
	a := config.Addition{Keys: []string{"host_image", "toolchains"}, Inherited: flowScalars(s.conf.HostImage.Toolchains), Comment: "shown read-only in the sandbox, with all that is in them"}
	for _, p := range programs {
		for _, dir := range p.Toolchains {
			item := config.FlowScalar(config.ShortenHome(dir, s.environ.home()))
			if !slices.Contains(a.Items, item) {
				a.Items = append(a.Items, item)
			}
		}
	}
	return a
}

// toolchainLine returns the line of the configuration with which image host shows
// these directories beside those that it shows already.
func (s *settings) toolchainLine(dirs []string) string {
	all := slices.Clone(s.conf.HostImage.Toolchains)
	for _, dir := range dirs {
		all = append(all, config.ShortenHome(dir, s.environ.home()))
	}
	return "host_image: {toolchains: [" + strings.Join(flowScalars(all), ", ") + "]}"
}
