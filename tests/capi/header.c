/* The header compiles by itself, twice, as strict C11. */
#include "weir.h"
#include "weir.h"

int main(void)
{
    return 0;
}
