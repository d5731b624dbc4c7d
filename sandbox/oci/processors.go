package oci

import (
	"fmt"
	"os"
	"path/filepath"

	"github.com/opencontainers/runtime-spec/specs-go"

	"github.com/caisson-run/caisson/sandbox/internal/harden"
)

// processorFiles are files of the bundle that say how many processors there
// are, by the path that each is put over. Where the limit of CPU time amounts to
// all of this machine's there are none.
type processorFiles map[string]string

// writeProcessors writes them.
func (b *bundle) writeProcessors(milliCPUs int64) (processorFiles, error) {
	p := harden.NewProcessors(milliCPUs)
	files := processorFiles{}
	for path, text := range map[string]string{harden.OnlinePath: p.Online, harden.CPUInfoPath: p.CPUInfo} {
		if text == "" {
			continue
		}
		files[path] = filepath.Join(b.dir, "cpu-"+filepath.Base(path))
		if err := os.WriteFile(files[path], []byte(text), 0o644); err != nil {
			return nil, fmt.Errorf("make bundle: %w", err)
		}
	}
	return files, nil
}

// mounts binds each file, which all runtimes allow for these two.
func (f processorFiles) mounts() []specs.Mount {
	var list []specs.Mount
	for _, path := range []string{harden.OnlinePath, harden.CPUInfoPath} {
		if f[path] != "" {
			list = append(list, bind(f[path], path, "ro"))
		}
	}
	return list
}
