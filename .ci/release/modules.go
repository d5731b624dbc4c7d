package main

import (
	"cmp"
	"debug/buildinfo"
	"errors"
	"fmt"
	"io"
	"maps"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"time"

	cdx "github.com/CycloneDX/cyclonedx-go"
)

// writeModules writes which modules each program links, as go version -m lists them, and their licences.
func writeModules(version, build string, archs []string, date time.Time) error {
	licences, err := readLicences(archs)
	if err != nil {
		return err
	}
	root := "pkg:github/caisson-run/caisson@" + version
	modules := map[string]cdx.Component{}
	components := []cdx.Component{}
	dependencies := []cdx.Dependency{{Ref: root, Dependencies: &[]string{}}}
	for _, name := range []string{"caisson", "caisson-guest", "runsc"} {
		linked := map[string]bool{}
		for _, arch := range archs {
			info, err := buildinfo.ReadFile(filepath.Join(build, arch, name))
			if err != nil {
				return err
			}
			add := func(path, version, notes string) {
				url := "pkg:golang/" + path + "@" + strings.ReplaceAll(version, "+", "%2B")
				c := cdx.Component{BOMRef: url, Type: cdx.ComponentTypeLibrary, Name: path, Version: version, PackageURL: url}
				if notes != "" {
					c.Pedigree = &cdx.Pedigree{Notes: notes}
				}
				modules[url], linked[url] = c, true
			}
			add("std", strings.TrimPrefix(info.GoVersion, "go"), "")
			for _, m := range info.Deps {
				notes := ""
				if m.Replace != nil {
					notes = "changed by the patch in sandbox/oci/runsc"
				}
				add(m.Path, m.Version, notes)
			}
		}
		ref, urls := root+"#"+name, slices.Sorted(maps.Keys(linked))
		components = append(components, cdx.Component{BOMRef: ref, Type: cdx.ComponentTypeApplication, Name: name, Version: version})
		*dependencies[0].Dependencies = append(*dependencies[0].Dependencies, ref)
		dependencies = append(dependencies, cdx.Dependency{Ref: ref, Dependencies: &urls})
	}
	var texts strings.Builder
	fmt.Fprintf(&texts, "Licences of the Go modules that caisson %s and the programs in it link.\nhttps://pkg.go.dev/MODULE@VERSION leads to the source of each.\n", version)
	for _, url := range slices.Sorted(maps.Keys(modules)) {
		c := modules[url]
		components = append(components, c)
		text := licences[c.Name+"@"+c.Version]
		if text == "" {
			return fmt.Errorf("%s %s has no licence", c.Name, c.Version)
		}
		fmt.Fprintf(&texts, "\n%s\n%s %s\n%s", strings.Repeat("=", 80), c.Name, c.Version, text)
	}
	bom := cdx.NewBOM()
	bom.Metadata = &cdx.Metadata{Timestamp: date.Format(time.RFC3339), Component: &cdx.Component{
		BOMRef: root, Type: cdx.ComponentTypeApplication, Name: "caisson", Version: version, PackageURL: root,
		Licenses: &cdx.Licenses{{License: &cdx.License{ID: "Apache-2.0"}}},
	}}
	bom.Components, bom.Dependencies = &components, &dependencies
	return errors.Join(os.WriteFile(filepath.Join(build, "THIRD_PARTY"), []byte(texts.String()), 0o644),
		create(filepath.Join(build, "sbom.json"), func(w io.Writer) error {
			return cdx.NewBOMEncoder(w, cdx.BOMFileFormatJSON).SetPretty(true).Encode(bom)
		}))
}

var licenceFile = regexp.MustCompile(`(?i)^(licen[cs]es?|copying|notice|patents|unlicense)([.-].*)?$`)

// readLicences returns the licences of each module@version: the files in the directories of linked packages, and in the
// ones above.
func readLicences(archs []string) (map[string]string, error) {
	const format = "{{if .Module}}{{.Dir}}\t{{.Module.Path}}@{{.Module.Version}}\t{{.Module.Dir}}{{end}}"
	texts, seen := map[string]string{}, map[string]bool{}
	add := func(dir, module, top string) error {
		for ; strings.HasPrefix(dir, top) && !seen[dir]; dir = filepath.Dir(dir) {
			seen[dir] = true
			entries, err := os.ReadDir(dir)
			if err != nil {
				return err
			}
			for _, e := range entries {
				if !licenceFile.MatchString(e.Name()) || filepath.Ext(e.Name()) == ".go" || !e.Type().IsRegular() {
					continue
				}
				text, err := os.ReadFile(filepath.Join(dir, e.Name()))
				if err != nil {
					return err
				}
				texts[module] += "\n" + filepath.Join(strings.TrimPrefix(dir, top), e.Name()) + ":\n\n" + strings.TrimSpace(string(text)) + "\n"
			}
		}
		return nil
	}
	golang := cmp.Or(os.Getenv("GO"), "go")
	out, err := exec.Command(golang, "env", "GOVERSION", "GOROOT").Output()
	if err != nil {
		return nil, fmt.Errorf("%s env: %w", golang, err)
	}
	f := strings.Fields(string(out))
	if err := add(f[1], "std@"+strings.TrimPrefix(f[0], "go"), f[1]); err != nil {
		return nil, err
	}
	for _, arch := range archs {
		for _, packages := range [][]string{{"../..", "./cmd/caisson", "./cmd/caisson-guest"}, {"../../sandbox/oci/runsc", "."}} {
			cmd := exec.Command(golang, append([]string{"list", "-C", packages[0], "-deps", "-f", format}, packages[1:]...)...)
			cmd.Env = append(os.Environ(), "GOOS=linux", "GOARCH="+arch, "CGO_ENABLED=0")
			cmd.Stderr = os.Stderr
			out, err := cmd.Output()
			if err != nil {
				return nil, fmt.Errorf("%s list: %w", golang, err)
			}
			for line := range strings.Lines(string(out)) {
				if f := strings.Split(strings.TrimSpace(line), "\t"); len(f) == 3 && !strings.HasSuffix(f[1], "@") {
					if err := add(f[0], f[1], f[2]); err != nil {
						return nil, err
					}
				}
			}
		}
	}
	return texts, nil
}
