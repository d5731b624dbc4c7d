package setid

import (
	"errors"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
	"unsafe"

	"golang.org/x/sys/unix"
)

// tree is a directory with a directory, a file, a FIFO, and symlinks to them
// and to nothing, all without the bits.
type tree struct {
	t    *testing.T
	root string
}

func newTree(t *testing.T) tree {
	t.Helper()
	r := tree{t, t.TempDir()}
	for _, err := range []error{
		os.Mkdir(r.path("dir"), 0o755), os.WriteFile(r.path("file"), []byte("text"), 0o600),
		unix.Mkfifo(r.path("fifo"), 0o600), os.Symlink("dir", r.path("todir")), os.Symlink("none", r.path("tonone")),
	} {
		if err != nil {
			t.Fatal(err)
		}
	}
	return r
}

func (r tree) path(name string) string { return filepath.Join(r.root, name) }

// mode returns a file's type and mode, or 0 if it is missing.
func (r tree) mode(name string) uint32 {
	var st unix.Stat_t
	if err := unix.Lstat(r.path(name), &st); err != nil {
		return 0
	}
	return st.Mode
}

// open opens a file for the caller, who shares the test's descriptors.
func (r tree) open(name string) int {
	r.t.Helper()
	fd, err := unix.Open(r.path(name), unix.O_RDONLY|unix.O_NONBLOCK|unix.O_CLOEXEC, 0)
	if err != nil {
		r.t.Fatal(err)
	}
	r.t.Cleanup(func() { _ = unix.Close(fd) })
	return fd
}

func fchmodat2(at int, name string, mode, flags uint32) error {
	p, err := unix.BytePtrFromString(name)
	if err != nil {
		return err
	}
	_, _, errno := unix.Syscall6(unix.SYS_FCHMODAT2, uintptr(at), uintptr(unsafe.Pointer(p)), uintptr(mode), uintptr(flags), 0, 0)
	return orNil(errno)
}

func orNil(errno unix.Errno) error {
	if errno == 0 {
		return nil
	}
	return errno
}

// TestModes checks that only directories get the set-group-ID bit, however they
// are named, and nothing the set-user-ID bit.
func TestModes(t *testing.T) {
	do := filtered(t)
	const here = unix.AT_FDCWD
	own := func(dir string, fd int) string { return dir + strconv.Itoa(fd) }
	for name, tt := range map[string]struct {
		call func(r tree) error
		file string // dir if empty
		want error
	}{
		"path":                              {call: func(r tree) error { return fchmodat2(here, r.path("dir"), 0o2755, 0) }},
		"fchmodat":                          {call: func(r tree) error { return unix.Fchmodat(here, r.path("dir"), 0o2755, 0) }},
		"fchmodat below a descriptor":       {call: func(r tree) error { return unix.Fchmodat(r.open("."), "dir", 0o2755, 0) }},
		"file and no path":                  {call: func(r tree) error { return fchmodat2(r.open("file"), "", 0o2600, unix.AT_EMPTY_PATH) }, file: "file", want: unix.EPERM},
		"number of a descriptor beyond all": {call: func(tree) error { return fchmodat2(here, "/proc/self/fd/2147483648", 0o2755, 0) }, want: unix.ENOENT},
		"directory that has one mode":       {call: func(tree) error { return fchmodat2(here, "/proc/self", 0o2755, 0) }, want: unix.EPERM},
		"high descriptor": {call: func(r tree) error {
			fd, err := unix.FcntlInt(uintptr(r.open("dir")), unix.F_DUPFD_CLOEXEC, 1020)
			if err != nil {
				return err
			}
			defer unix.Close(fd)
			return fchmodat2(here, own("/proc/self/fd/", fd), 0o2755, 0)
		}},
		"symlink":                      {call: func(r tree) error { return fchmodat2(here, r.path("todir"), 0o2755, 0) }},
		"below a descriptor":           {call: func(r tree) error { return fchmodat2(r.open("."), "dir", 0o2755, 0) }},
		"descriptor":                   {call: func(r tree) error { return unix.Fchmod(r.open("dir"), 0o2755) }},
		"descriptor and no path":       {call: func(r tree) error { return fchmodat2(r.open("dir"), "", 0o2755, unix.AT_EMPTY_PATH) }},
		"path that is not followed":    {call: func(r tree) error { return fchmodat2(here, r.path("dir"), 0o2755, unix.AT_SYMLINK_NOFOLLOW) }},
		"path with the empty flag":     {call: func(r tree) error { return fchmodat2(here, r.path("dir"), 0o2755, unix.AT_EMPTY_PATH) }},
		"own descriptor":               {call: func(r tree) error { return fchmodat2(here, own("/proc/self/fd/", r.open("dir")), 0o2755, 0) }},
		"the thread's descriptor":      {call: func(r tree) error { return fchmodat2(here, own("/proc/thread-self/fd/", r.open("dir")), 0o2755, 0) }},
		"descriptor below /dev":        {call: func(r tree) error { return fchmodat2(here, own("/dev/fd/", r.open("dir")), 0o2755, 0) }},
		"working directory":            {call: func(r tree) error { return errors.Join(unix.Chdir(r.root), fchmodat2(here, "dir", 0o2755, 0)) }},
		"set-user-ID":                  {call: func(r tree) error { return fchmodat2(here, r.path("dir"), 0o4755, 0) }, want: unix.EPERM},
		"both":                         {call: func(r tree) error { return unix.Fchmod(r.open("dir"), 0o6755) }, want: unix.EPERM},
		"file":                         {call: func(r tree) error { return fchmodat2(here, r.path("file"), 0o2600, 0) }, file: "file", want: unix.EPERM},
		"open file":                    {call: func(r tree) error { return unix.Fchmod(r.open("file"), 0o2600) }, file: "file", want: unix.EPERM},
		"open file by its name":        {call: func(r tree) error { return fchmodat2(here, own("/proc/self/fd/", r.open("file")), 0o2600, 0) }, file: "file", want: unix.EPERM},
		"FIFO":                         {call: func(r tree) error { return fchmodat2(here, r.path("fifo"), 0o2600, 0) }, file: "fifo", want: unix.EPERM},
		"symlink that is not followed": {call: func(r tree) error { return fchmodat2(here, r.path("todir"), 0o2755, unix.AT_SYMLINK_NOFOLLOW) }, want: unix.EPERM},
		"own descriptor, not followed": {call: func(r tree) error {
			return fchmodat2(here, own("/proc/self/fd/", r.open("dir")), 0o2755, unix.AT_SYMLINK_NOFOLLOW)
		}, want: unix.EPERM},
		"magic link":            {call: func(tree) error { return fchmodat2(here, "/proc/self/cwd", 0o2755, 0) }, want: unix.ELOOP},
		"below a magic link":    {call: func(r tree) error { return fchmodat2(here, "/proc/self/root"+r.path("dir"), 0o2755, 0) }, want: unix.ELOOP},
		"no path":               {call: func(r tree) error { return fchmodat2(r.open("dir"), "", 0o2755, 0) }, want: unix.ENOENT},
		"nothing there":         {call: func(r tree) error { return fchmodat2(here, r.path("none"), 0o2755, 0) }, want: unix.ENOENT},
		"unknown flag":          {call: func(r tree) error { return fchmodat2(here, r.path("dir"), 0o2755, 1) }, want: unix.EINVAL},
		"closed descriptor":     {call: func(tree) error { return unix.Fchmod(1<<20, 0o2755) }, want: unix.EBADF},
		"below a closed one":    {call: func(tree) error { return fchmodat2(1<<20, "dir", 0o2755, 0) }, want: unix.EBADF},
		"closed one's name":     {call: func(tree) error { return fchmodat2(here, own("/proc/self/fd/", 1<<20), 0o2755, 0) }, want: unix.EBADF},
		"no descriptor's name":  {call: func(tree) error { return fchmodat2(here, "/proc/self/fd/x", 0o2755, 0) }, want: unix.ENOENT},
		"longest path":          {call: func(r tree) error { return fchmodat2(here, dotted(r.path("dir"), unix.PathMax-1), 0o2755, 0) }},
		"path that is too long": {call: func(r tree) error { return fchmodat2(here, dotted(r.path("dir"), unix.PathMax), 0o2755, 0) }, want: unix.ENAMETOOLONG},
		"no memory":             {call: func(tree) error { return chmodAt(1) }, want: unix.EFAULT},
		"path over two pages":   {call: func(r tree) error { return chmodInPages(r.path("dir"), 1) }},
		"path to a page's end":  {call: func(r tree) error { return chmodInPages(r.path("dir"), -1) }},
		"path without its end":  {call: func(r tree) error { return chmodInPages(r.path("dir"), 0) }, want: unix.EFAULT},
	} {
		t.Run(name, func(t *testing.T) {
			r := newTree(t)
			file := tt.file
			if file == "" {
				file = "dir"
			}
			before := r.mode(file)
			want := before
			if tt.want == nil {
				want |= unix.S_ISGID
			}
			if err := do(func() error { return tt.call(r) }); !errors.Is(err, tt.want) || r.mode(file) != want {
				t.Errorf("error %v, want %v; mode %o, want %o", err, tt.want, r.mode(file), want)
			}
		})
	}
}

// dotted makes a path longer without changing its meaning.
func dotted(path string, size int) string {
	if (size-len(path))%2 == 1 {
		path = "/" + path
	}
	return strings.Repeat("/.", (size-len(path))/2) + path
}

func chmodAt(addr uintptr) error {
	at := unix.AT_FDCWD
	_, _, errno := unix.Syscall6(unix.SYS_FCHMODAT, uintptr(at), addr, 0o2755, 0, 0, 0)
	return orNil(errno)
}

// chmodInPages places a path so that it and its end take beyond bytes of the
// next page, or end one byte before a page's end (-1). The page after that is
// missing.
func chmodInPages(path string, beyond int) error {
	const page = 4096
	mem, err := unix.Mmap(-1, 0, 3*page, unix.PROT_READ|unix.PROT_WRITE, unix.MAP_PRIVATE|unix.MAP_ANON)
	if err != nil {
		return err
	}
	defer unix.Munmap(mem)
	end := 2 * page // of the path, without its NUL
	switch beyond {
	case 1: // across the first boundary
		end = page + 3
	case -1:
		end--
	}
	copy(mem[end-len(path):], path)
	if _, _, errno := unix.Syscall(unix.SYS_MUNMAP, uintptr(unsafe.Pointer(&mem[2*page])), page, 0); errno != 0 {
		return errno
	}
	return chmodAt(uintptr(unsafe.Pointer(&mem[end-len(path)])))
}

type opened struct {
	mode        uint32 // permissions and bits
	size        int64
	status      int // flags of the open file
	closeOnExec bool
}

// look describes a descriptor and closes it.
func look(fd int) (o opened, err error) {
	defer unix.Close(fd)
	var st unix.Stat_t
	err = unix.Fstat(fd, &st)
	o.mode, o.size = st.Mode&0o7777, st.Size
	flags, err1 := unix.FcntlInt(uintptr(fd), unix.F_GETFD, 0)
	o.closeOnExec = flags&unix.FD_CLOEXEC != 0
	var err2 error
	o.status, err2 = unix.FcntlInt(uintptr(fd), unix.F_GETFL, 0)
	o.status &= unix.O_ACCMODE | unix.O_APPEND | unix.O_NONBLOCK | unix.O_TMPFILE
	return o, errors.Join(err, err1, err2)
}

// TestOpen checks that a new file has neither bit, and otherwise the requested
// mode, flags and umask. An existing file keeps its mode.
func TestOpen(t *testing.T) {
	do := filtered(t)
	const create = unix.O_CREAT | unix.O_WRONLY
	for name, tt := range map[string]struct {
		name  string // new if empty
		flags int
		mode  uint32 // 0o6755 if 0
		umask int
		want  opened
		err   error
	}{
		"new":               {flags: create, want: opened{mode: 0o755, status: unix.O_WRONLY}},
		"set-user-ID":       {flags: create, mode: 0o4711, want: opened{mode: 0o711, status: unix.O_WRONLY}},
		"set-group-ID":      {flags: create, mode: 0o2711, want: opened{mode: 0o711, status: unix.O_WRONLY}},
		"sticky bit":        {flags: create, mode: 0o7711, want: opened{mode: 0o1711, status: unix.O_WRONLY}},
		"written by others": {flags: create, mode: 0o6777, want: opened{mode: 0o777, status: unix.O_WRONLY}},
		"by the group":      {flags: create, mode: 0o6720, want: opened{mode: 0o720, status: unix.O_WRONLY}},
		"umask":             {flags: create, mode: 0o6777, umask: 0o27, want: opened{mode: 0o750, status: unix.O_WRONLY}},
		"flags": {
			flags: unix.O_CREAT | unix.O_RDWR | unix.O_APPEND | unix.O_NONBLOCK | unix.O_CLOEXEC,
			want:  opened{mode: 0o755, status: unix.O_RDWR | unix.O_APPEND | unix.O_NONBLOCK, closeOnExec: true},
		},
		"flags that are not known": {flags: create | 1<<30, want: opened{mode: 0o755, status: unix.O_WRONLY}},
		"exclusively":              {flags: create | unix.O_EXCL, want: opened{mode: 0o755, status: unix.O_WRONLY}},
		"without a name":           {name: "dir", flags: unix.O_TMPFILE | unix.O_RDWR, mode: 0o6777, want: opened{mode: 0o777, status: unix.O_RDWR | unix.O_TMPFILE}},
		"there":                    {name: "file", flags: create, mode: 0o6777, want: opened{mode: 0o600, size: 4, status: unix.O_WRONLY}},
		"there, truncated":         {name: "file", flags: create | unix.O_TRUNC, want: opened{mode: 0o600, status: unix.O_WRONLY}},
		"without a name, nowhere":  {name: "none", flags: unix.O_TMPFILE | unix.O_RDWR, err: unix.ENOENT},
		"there, exclusively":       {name: "file", flags: create | unix.O_EXCL, err: unix.EEXIST},
		"below a symlink":          {name: "todir/new", flags: create, want: opened{mode: 0o755, status: unix.O_WRONLY}},
		"symlink to nothing":       {name: "tonone", flags: create, err: unix.EPERM},
		"directory":                {name: "dir", flags: create, err: unix.EISDIR},
		"directory, to read":       {name: "dir", flags: unix.O_CREAT | unix.O_RDONLY, err: unix.EPERM},
		"FIFO":                     {name: "fifo", flags: unix.O_CREAT | unix.O_RDONLY, err: unix.EPERM},
		"no directory":             {name: "none/new", flags: create, err: unix.ENOENT},
		"below a file":             {name: "file/new", flags: create, err: unix.ENOTDIR},
		"path alone":               {name: "dir", flags: unix.O_TMPFILE | unix.O_RDWR | unix.O_PATH, err: unix.EINVAL},
		"/proc":                    {name: "/proc/self/comm", flags: unix.O_CREAT | unix.O_RDWR, err: unix.EPERM},
		"magic link":               {name: "/proc/self/exe", flags: unix.O_CREAT | unix.O_RDONLY, err: unix.ELOOP},
	} {
		t.Run(name, func(t *testing.T) {
			r := newTree(t)
			if tt.name == "" {
				tt.name = "new"
			}
			if !filepath.IsAbs(tt.name) {
				tt.name = r.path(tt.name)
			}
			if tt.mode == 0 {
				tt.mode = 0o6755
			}
			var got opened
			err := do(func() error {
				defer unix.Umask(unix.Umask(tt.umask))
				fd, err := unix.Open(tt.name, tt.flags, tt.mode)
				if err == nil {
					got, err = look(fd)
				}
				return err
			})
			if !errors.Is(err, tt.err) || got != tt.want {
				t.Errorf("error %v, want %v; opened %+v, want %+v", err, tt.err, got, tt.want)
			}
			if r.mode("none") != 0 {
				t.Error("a symlink to nothing was followed")
			}
		})
	}
}

// TestNodes checks that files of other types are made without the bits, and
// devices not at all.
func TestNodes(t *testing.T) {
	do := filtered(t)
	const here = unix.AT_FDCWD
	for name, tt := range map[string]struct {
		call  func(r tree) error
		umask int
		want  uint32 // the mode of new, 0 if it is not made
		err   error
	}{
		"FIFO":           {call: func(r tree) error { return unix.Mknodat(here, r.path("new"), unix.S_IFIFO|0o6755, 0) }, want: unix.S_IFIFO | 0o755},
		"socket":         {call: func(r tree) error { return unix.Mknodat(here, r.path("new"), unix.S_IFSOCK|0o6755, 0) }, want: unix.S_IFSOCK | 0o755},
		"file":           {call: func(r tree) error { return unix.Mknodat(here, r.path("new"), unix.S_IFREG|0o4755, 0) }, want: unix.S_IFREG | 0o755},
		"no type":        {call: func(r tree) error { return unix.Mknodat(here, r.path("new"), 0o2755, 0) }, want: unix.S_IFREG | 0o755},
		"sticky bit":     {call: func(r tree) error { return unix.Mknodat(here, r.path("new"), unix.S_IFIFO|0o7711, 0) }, want: unix.S_IFIFO | 0o1711},
		"umask":          {call: func(r tree) error { return unix.Mknodat(here, r.path("new"), unix.S_IFIFO|0o6755, 0) }, umask: 0o57, want: unix.S_IFIFO | 0o700},
		"directory":      {call: func(r tree) error { return unix.Mknodat(r.open("."), "dir/../new", unix.S_IFIFO|0o6755, 0) }, want: unix.S_IFIFO | 0o755},
		"descriptor":     {call: func(r tree) error { return unix.Mknodat(r.open("."), "new", unix.S_IFIFO|0o6755, 0) }, want: unix.S_IFIFO | 0o755},
		"character":      {call: func(r tree) error { return unix.Mknodat(here, r.path("new"), unix.S_IFCHR|0o6755, 0x103) }, err: unix.EPERM},
		"block":          {call: func(r tree) error { return unix.Mknodat(here, r.path("new"), unix.S_IFBLK|0o6755, 0x700) }, err: unix.EPERM},
		"there":          {call: func(r tree) error { return unix.Mknodat(here, r.path("file"), unix.S_IFIFO|0o6755, 0) }, err: unix.EEXIST},
		"no name":        {call: func(r tree) error { return unix.Mknodat(here, r.path("new")+"/", unix.S_IFIFO|0o6755, 0) }, err: unix.ENOENT},
		"no directory":   {call: func(r tree) error { return unix.Mknodat(here, r.path("none/new"), unix.S_IFIFO|0o6755, 0) }, err: unix.ENOENT},
		"by magic links": {call: func(r tree) error { return unix.Mknodat(here, "/proc/self/root"+r.path("new"), unix.S_IFIFO|0o6755, 0) }, err: unix.ELOOP},
	} {
		t.Run(name, func(t *testing.T) {
			r := newTree(t)
			err := do(func() error {
				defer unix.Umask(unix.Umask(tt.umask))
				return tt.call(r)
			})
			if !errors.Is(err, tt.err) || r.mode("new") != tt.want {
				t.Errorf("error %v, want %v; mode %o, want %o", err, tt.err, r.mode("new"), tt.want)
			}
		})
	}
}

// TestGoneCaller checks that nothing is done for a thread that no longer waits.
func TestGoneCaller(t *testing.T) {
	r := newTree(t)
	root, err := unix.Open("/", unix.O_PATH|unix.O_CLOEXEC, 0)
	if err != nil {
		t.Fatal(err)
	}
	defer unix.Close(root)
	dir, file := []byte(r.path("dir")+"\x00"), []byte(r.path("new")+"\x00")
	at := int64(unix.AT_FDCWD)
	for _, waits := range []bool{false, true} { // true is the control
		c := &caller{thread: unix.Gettid(), root: root, waits: func() bool { return waits }}
		for name, call := range map[string]struct {
			number int
			args   [6]uint64
		}{
			"chmod": {unix.SYS_FCHMODAT, [6]uint64{uint64(at), addr(dir), 0o2755}},
			"open":  {unix.SYS_OPENAT, [6]uint64{uint64(at), addr(file), unix.O_CREAT | unix.O_RDWR, 0o2755}},
			"mknod": {unix.SYS_MKNODAT, [6]uint64{uint64(at), addr(file), unix.S_IFIFO | 0o2755}},
		} {
			made, err := c.performCall(call.number, call.args)
			if waits != (err == nil) || !waits && !errors.Is(err, unix.EPERM) {
				t.Errorf("%s, waits %t: %v", name, waits, err)
			}
			if made.fd >= 0 {
				_ = unix.Close(made.fd)
			}
			done := r.mode("dir")&unix.S_ISGID != 0 || r.mode("new") != 0
			if done != waits {
				t.Errorf("%s, waits %t: done %t", name, waits, done)
			}
			_, _ = os.Chmod(r.path("dir"), 0o755), os.Remove(r.path("new"))
		}
	}
	if _, err := (&caller{}).performCall(unix.SYS_GETPID, [6]uint64{}); !errors.Is(err, unix.EPERM) {
		t.Errorf("another call: %v", err)
	}
}

func addr(b []byte) uint64 { return uint64(uintptr(unsafe.Pointer(&b[0]))) }

func TestErrnoOf(t *testing.T) {
	for _, tt := range []struct {
		err  error
		want unix.Errno
	}{
		{nil, 0}, {errors.New("strange"), unix.EPERM}, {&os.PathError{Err: unix.EIO}, unix.EIO},
	} {
		if got := errnoOf(tt.err); got != tt.want {
			t.Errorf("of %v: %v, want %v", tt.err, got, tt.want)
		}
	}
}

// TestOpenBelow checks that a name is looked up below the caller's descriptor.
func TestOpenBelow(t *testing.T) {
	do := filtered(t)
	r := newTree(t)
	dir := r.open("dir")
	if err := do(func() error {
		fd, err := unix.Openat(dir, "new", unix.O_CREAT|unix.O_RDWR, 0o6711)
		if err != nil {
			return err
		}
		return unix.Close(fd)
	}); err != nil || r.mode("dir/new") != unix.S_IFREG|0o711 {
		t.Errorf("error %v, mode %o", err, r.mode("dir/new"))
	}
}
