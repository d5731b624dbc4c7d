// Package file holds the tools that read and change the workspace's files:
// read_file, list_dir, glob and grep run in the host process and see files
// through a workspace.View alone; write_file, patch_file and delete_file are
// workspace.Ops that something in the sandbox applies. There is no way from
// here to a file but these two.
//
// Names and arguments follow what models already know; other spellings of
// arguments are aliases. What a file or a file's name holds is data: names are
// shown escaped where they hold what a reader would not see, text that is not
// UTF-8 is marked as lossy, and every result is bounded and says where it was cut.
package file
