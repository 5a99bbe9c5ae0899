#include "cli/app.h"

int main(int argc, char** argv) { return plait::cli::run_program(argc, argv); }
