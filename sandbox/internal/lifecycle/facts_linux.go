package lifecycle

import (
	"os"
	"syscall"
)

// identifyFile returns the identity of the regular file that path leads to.
func identifyFile(path string) (fileIdentity, bool) {
	info, err := os.Stat(path)
	if err != nil || !info.Mode().IsRegular() {
		return fileIdentity{}, false
	}
	st, ok := info.Sys().(*syscall.Stat_t)
	if !ok {
		return fileIdentity{}, false
	}
	return fileIdentity{device: st.Dev, inode: st.Ino, size: st.Size, modified: st.Mtim.Nano(), changed: st.Ctim.Nano()}, true
}
