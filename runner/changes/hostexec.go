package changes

import (
	"path"
	"strings"
	"sync"
	"unicode"

	"github.com/caisson-run/caisson/runner/record"
)

// bySymlink is who may follow a symlink out of the workspace.
const bySymlink = "whatever follows it"

// hostRule names a program on the host that runs or obeys certain files. Names are in lower case
// and match any case.
type hostRule struct {
	by string
	// names are base names; starts and ends are their prefixes and suffixes. All are separated
	// by spaces and match at any depth.
	names, starts, ends string
	// dirs are names of directories, or of directories in directories, at any depth. They match
	// together with everything below.
	dirs string
}

// hostRules are files whose change can run code on the host later without the user starting
// it: CI definitions, build files, hooks, editor and shell settings, and agents'
// instructions. Examples are CVE-2025-61260 (an agent's own configuration in a project) and
// CVE-2026-19592 (git's fsmonitor).
var hostRules = []hostRule{
	{
		by: "CI",
		names: ".gitlab-ci.yml .gitlab-ci.yaml .travis.yml .drone.yml .drone.star azure-pipelines.yml azure-pipelines.yaml bitbucket-pipelines.yml " +
			"appveyor.yml .appveyor.yml .cirrus.yml .cirrus.star .woodpecker.yml .woodpecker.yaml .build.yml buildspec.yml buildspec.yaml cloudbuild.yml cloudbuild.yaml " +
			"codemagic.yaml dagger.json screwdriver.yaml wercker.yml renovate.json renovate.json5 .renovaterc .goreleaser.yml .goreleaser.yaml",
		starts: "jenkinsfile",
		dirs:   ".github .gitlab .circleci .buildkite .woodpecker .gitea .forgejo .ci .builds .teamcity .semaphore .azure-pipelines .tekton",
	},
	{by: "make", names: "makefile gnumakefile bsdmakefile makefile.am makefile.in makefile.inc makefile.pl kbuild", ends: ".mk .mak"},
	{
		by: "a build tool",
		names: "cmakelists.txt cmakepresets.json cmakeuserpresets.json meson.build configure configure.ac configure.in autogen.sh bootstrap.sh justfile .justfile rakefile " +
			"build build.bazel workspace workspace.bazel module.bazel .bazelrc .bazeliskrc buck .buckconfig pants.toml earthfile tiltfile sconstruct sconscript wscript " +
			"build.ninja premake5.lua xmake.lua conanfile.py conanfile.txt vcpkg.json build.zig build.zig.zon build.xml build.sbt build.sc build.mill tupfile magefile.go " +
			"dune dune-project mix.exs rebar.config rebar.config.script stack.yaml cabal.project setup.hs package.swift podfile pubspec.yaml build.yaml project.clj deps.edn bb.edn " +
			"global.json nuget.config directory.build.props directory.build.targets directory.packages.props build.pl cpanfile skaffold.yaml procfile .air.toml",
		starts: "taskfile. .taskrc.",
		ends:   ".cmake .csproj .fsproj .vbproj .vcxproj .sln .slnx .props .targets .bzl .just .cabal .pro",
		dirs:   "fastlane magefiles",
	},
	{
		by:    "gradle, maven or sbt",
		names: "gradlew gradlew.bat gradle.properties mvnw mvnw.cmd pom.xml .sdkmanrc .sbtopts .jvmopts",
		ends:  ".gradle .gradle.kts", dirs: ".mvn .gradle gradle/wrapper",
	},
	{by: "cargo", names: "cargo.toml build.rs rust-toolchain rust-toolchain.toml", dirs: ".cargo"},
	{by: "go", names: "go.mod go.work .golangci.yml .golangci.yaml .golangci.toml .golangci.json .custom-gcl.yml"},
	{
		by: "node, bun, deno or their tools",
		names: "package.json .npmrc .yarnrc .yarnrc.yml .pnp.cjs .pnp.loader.mjs .pnpmfile.cjs .pnpmfile.mjs pnpm-workspace.yaml binding.gyp bunfig.toml .bunfig.toml deno.json deno.jsonc " +
			"lerna.json nx.json turbo.json angular.json .swcrc ember-cli-build.js",
		starts: "eslint.config. vite.config. vitest.config. vitest.setup. vitest.workspace. webpack.config. rspack.config. rollup.config. babel.config. jest.config. jest.setup. postcss.config. " +
			"tailwind.config. next.config. nuxt.config. svelte.config. astro.config. vue.config. remix.config. playwright.config. cypress.config. karma.conf. metro.config. " +
			"prettier.config. stylelint.config. commitlint.config. lint-staged.config. tsup.config. release.config. wdio.conf. drizzle.config. gulpfile. gruntfile. " +
			".eslintrc .prettierrc .babelrc .stylelintrc .mocharc .lintstagedrc .commitlintrc .releaserc .postcssrc tsconfig. jsconfig. knip.",
		dirs: ".yarn node_modules/.bin node_modules/.hooks",
	},
	{
		by: "Python",
		names: "setup.py setup.cfg pyproject.toml tox.ini noxfile.py conftest.py sitecustomize.py usercustomize.py pytest.ini .pytest.ini pytest.toml pipfile requirements.txt " +
			"poetry.toml pdm.toml uv.toml hatch.toml .python-version pylintrc .pylintrc pylintrc.toml .flake8 mypy.ini .mypy.ini .coveragerc tasks.py fabfile.py dodo.py conf.py .pdbrc " +
			".pythonrc .pypirc pip.conf pyvenv.cfg ipython_config.py jupyter_notebook_config.py environment.yml environment.yaml .condarc",
		starts: "activate. activate_this",
		ends:   ".pth",
		dirs:   ".venv/bin venv/bin env/bin .venv/scripts venv/scripts .ipython",
	},
	{by: "a shell", names: "activate"},
	{
		by: "Ruby, PHP, R or Lua",
		names: "gemfile gems.rb .rspec .irbrc .pryrc .rubocop.yml .simplecov guardfile capfile brewfile dangerfile config.ru composer.json artisan phpunit.xml phpunit.xml.dist " +
			"phpstan.neon phpstan.neon.dist .php-cs-fixer.php .php-cs-fixer.dist.php rector.php psalm.xml .user.ini php.ini .rprofile .renviron .luacheckrc .proverc .perlcriticrc",
		ends: ".gemspec .rockspec", dirs: ".bundle",
	},
	{by: "Nix or Guix", names: "devenv.yaml guix.scm", ends: ".nix", dirs: ".flox"},
	{
		by:    "Terraform or another deployment tool",
		names: ".terraformrc terraform.rc pulumi.yaml serverless.yml serverless.yaml cdk.json samconfig.toml ansible.cfg", ends: ".tf .tf.json .tofu .tfvars .hcl",
		dirs: ".terraform",
	},
	{
		by: "a container engine",
		names: "dockerfile containerfile compose.yml compose.yaml compose.override.yml compose.override.yaml vagrantfile .devcontainer.json devfile.yaml .devfile.yaml .gitpod.yml " +
			"devspace.yaml okteto.yml",
		starts: "dockerfile. containerfile. docker-compose.", ends: ".dockerfile", dirs: ".devcontainer",
	},
	{
		by:     "git",
		names:  ".gitmodules .gitattributes .gitconfig .pre-commit-config.yaml .pre-commit-config.yml .pre-commit-hooks.yaml .overcommit.yml .huskyrc .mrconfig",
		starts: "lefthook. .lefthook. lefthook-local. .lefthook-local.",
		dirs:   ".git .githooks .husky .lefthook .git-hooks",
	},
	{by: "Mercurial", names: ".hgsub .hgrc", dirs: ".hg"},
	{by: "Jujutsu", dirs: ".jj"},
	{by: "a version control system", dirs: ".svn .sl .bzr .pijul _darcs"},
	{
		by: "an editor",
		names: ".exrc .vimrc .nvimrc .nvim.lua .lvimrc .vimrc.local .local.vimrc .gvimrc .dir-locals.el .dir-locals-2.el .emacs .kakrc .ycm_extra_conf.py .project .classpath " +
			".solargraph.yml .luarc.json .clangd",
		ends: ".code-workspace .sublime-project",
		dirs: ".vscode .idea .zed .vim .nvim .fleet .helix .emacs.d .nova .run .bsp .metals .vs .theia",
	},
	{by: "a debugger", names: ".gdbinit .gdbearlyinit .lldbinit .radare2rc", starts: ".lldbinit-", ends: "-gdb.py -gdb.gdb -gdb.scm"},
	{
		by: "a shell",
		names: ".envrc .env .tool-versions mise.toml .mise.toml mise.local.toml .mise.local.toml .rtx.toml .asdfrc .bashrc .bash_profile .bash_login .bash_logout .bash_aliases .profile " +
			".zshrc .zshenv .zprofile .zlogin .zlogout .kshrc .cshrc .tcshrc .login .inputrc config.fish .autoenv .autoenv.zsh .tmux.conf .screenrc .xinitrc .xprofile",
		starts: ".env.", dirs: ".direnv .mise .shadowenv.d .ssh",
	},
	{by: "a desktop", names: "autorun.inf", ends: ".desktop"},
	{
		by: "an agent",
		names: ".mcp.json mcp.json agents.md agents.override.md agents.local.md agent.md claude.md claude.local.md gemini.md qwen.md crush.md warp.md codex.md skill.md .cursorrules .windsurfrules " +
			".clinerules .roomodes .roorules .goosehints .aider.conf.yml .rules opencode.json opencode.jsonc .opencode.json crush.json .crush.json .continuerc.json copilot-instructions.md",
		dirs: ".caisson .claude .claude-plugin .codex .cursor .gemini .agents .agent .opencode .qwen .roo .cline .clinerules .windsurf .continue .kiro .goose .crush .factory .augment " +
			".amazonq .junie .trae .aider .amp .copilot",
	},
}

// boundRules are files that can forbid something. Deleting one allows more, so it is listed
// too. They are a workspace's settings, also in directories below it.
var boundRules = []hostRule{{by: "an agent", names: ".mcp.json", dirs: ".caisson"}}

// hostNames finds rules by name; the values are hostRule.by.
type hostNames struct {
	names, dirs  map[string]string
	starts, ends []hostAffix
	// initials are the first bytes of dirs, and longest is the length of the longest.
	initials [256]bool
	longest  int
}

type hostAffix struct{ text, by string }

func indexRules(rules []hostRule) *hostNames {
	n := &hostNames{names: map[string]string{}, dirs: map[string]string{}}
	for _, r := range rules {
		for name := range strings.FieldsSeq(r.names) {
			n.names[name] = r.by
		}
		for dir := range strings.FieldsSeq(r.dirs) {
			n.dirs[dir] = r.by
			n.initials[dir[0]], n.longest = true, max(n.longest, len(dir))
		}
		for text := range strings.FieldsSeq(r.starts) {
			n.starts = append(n.starts, hostAffix{text, r.by})
		}
		for text := range strings.FieldsSeq(r.ends) {
			n.ends = append(n.ends, hostAffix{text, r.by})
		}
	}
	return n
}

var (
	executedNames = sync.OnceValue(func() *hostNames { return indexRules(hostRules) })
	boundNames    = sync.OnceValue(func() *hostNames { return indexRules(boundRules) })
)

// findRule returns what runs or obeys the file at a path, or "".
func (n *hostNames) findRule(p string) string {
	p = foldName(p)
	above, start := 0, 0 // where the last two names begin
	for start <= len(p) {
		end := len(p)
		if i := strings.IndexByte(p[start:], '/'); i >= 0 {
			end = start + i
		}
		if by := n.findDir(p[start:end]); by != "" {
			return by
		}
		if by := n.findDir(p[above:end]); by != "" {
			return by
		}
		above, start = start, end+1
	}
	base := strings.TrimRight(path.Base(p), ". ")
	if by := n.names[base]; by != "" {
		return by
	}
	for _, a := range n.starts {
		if strings.HasPrefix(base, a.text) {
			return a.by
		}
	}
	for _, a := range n.ends {
		if strings.HasSuffix(base, a.text) {
			return a.by
		}
	}
	return ""
}

func (n *hostNames) findDir(name string) string {
	if name == "" || !n.initials[name[0]] {
		return ""
	}
	if name = strings.TrimRight(name, ". "); len(name) > n.longest { // NTFS and FAT ignore these
		return ""
	}
	return n.dirs[name]
}

// foldName maps all names that some file system takes for the same one to one form: without
// case, and without the characters that HFS+ ignores (see is_hfs_dotgit in git's utf8.c).
func foldName(p string) string {
	if strings.IndexFunc(p, func(r rune) bool { return r >= 0x80 }) < 0 {
		return strings.ToLower(p)
	}
	return strings.Map(func(r rune) rune {
		switch {
		case r >= 0x200c && r <= 0x200f, r >= 0x202a && r <= 0x202e, r >= 0x206a && r <= 0x206f, r == 0xfeff:
			return -1
		}
		least := r
		for f := unicode.SimpleFold(r); f != r; f = unicode.SimpleFold(f) {
			least = min(least, f)
		}
		return unicode.ToLower(least)
	}, p)
}

func isHostExecuted(p string) bool { return executedNames().findRule(p) != "" }

// hostExecuted reports whether a program on the host would run, obey or follow a changed file,
// or was bounded by a deleted one. target is where a symlink leads out of the workspace, or "".
func hostExecuted(c record.Changed, target string) (record.HostExecuted, bool) {
	h := record.HostExecuted{Path: c.Path, Deleted: c.Change == "deleted", Added: c.Change == "added"}
	switch {
	case target != "" && !h.Deleted:
		h.By, h.Target = bySymlink, target
	case h.Deleted && boundNames().findRule(c.Path) == "": // a deleted file runs nothing
	default:
		h.By = executedNames().findRule(c.Path)
	}
	return h, h.By != ""
}
